"""Strict, frozen settings on pydantic, and one sentence for a value that a setting or an option cannot have."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)
from pydantic.dataclasses import dataclass
from pydantic.fields import FieldInfo

from tandem import plugins
from tandem.errors import ConfigError, nearest

STRICT = ConfigDict(
    extra="forbid",
    strict=True,
    allow_inf_nan=False,
    ser_json_inf_nan="constants",
    use_attribute_docstrings=True,
)
"""A value must have its type ("1" is no number), be finite unless its field says otherwise, and belong to a field that
exists, whose meaning is the text below it."""

S = TypeVar("S", bound="Settings")


def _texts(value: Any) -> Any:
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


Texts = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_texts)]
"""Texts that are not empty; a list is taken too, and one text stands for a list of one."""


def plugin_or(kind: plugins.Kind, *words: str) -> AfterValidator:
    """Annotates a text that is one of some words, the name of a plugin of this kind, or the address of code of one's
    own, MODULE:FUNCTION."""

    def check(value: str) -> str:
        if value in words or plugins.ADDRESS.fullmatch(value) or plugins.has(kind, value):
            return value
        names = dict.fromkeys((*words, *plugins.names(kind)))
        raise ValueError(f"must be {', '.join(names)}, or MODULE:FUNCTION of your own")

    return AfterValidator(check)


# ---- one sentence for a wrong value --------------------------------------------------------------------------


class SettingError(ConfigError):
    """A setting, or an option of a query, does not exist or has a value that it cannot have."""

    def __init__(self, name: str, problem: str) -> None:
        """problem: the sentence without the name."""
        super().__init__(f"{name} {problem}", option=name)
        self.name, self.problem = name, problem

    def __reduce__(self) -> Any:
        return SettingError, (self.name, self.problem)

    def renamed(self, name: str) -> SettingError:
        """The same error, by the name that the caller knows."""
        return SettingError(name, self.problem)


def explain(error: ValidationError, defaults: Mapping[str, Any]) -> SettingError:
    """The sentence for the first wrong value of a group of settings or options. defaults: of each that exists, by name;
    None: it has none."""
    name = str(error.errors(include_url=False)[0]["loc"][0])
    if name not in defaults:
        return SettingError(name, f"does not exist; the nearest is {nearest(name, defaults)!r}.")
    default = defaults[name]
    is_plain = default is not None and not isinstance(default, Settings)
    remedy = f"the default is {as_toml(default)}" if is_plain else "correct it or omit it"
    return SettingError(name, f"{describe(error)}; {remedy}.")


def describe(error: ValidationError) -> str:
    """The first thing that pydantic found wrong, without its name: "must be a valid integer (got '4')"."""
    first, *others = error.errors(include_url=False)
    if first["type"] == "missing":
        return "is missing"
    alternatives = [
        each for each in others if each["input"] is first["input"] and each["loc"][:1] == first["loc"][:1]
    ]
    ways = dict.fromkeys(as_predicate(each["msg"]) for each in (first, *alternatives))
    return f"{' or '.join(ways).replace(' or must be ', ' or ')} (got {show(first['input'])})"


def as_predicate(message: str) -> str:
    """A message of pydantic as what is said of a value: "must be a valid integer"."""
    words = re.sub(r"^\w+ should ", "must ", message.removeprefix("Value error, "))
    words = re.sub(r" or (an )?instance of \w+$", "", words)
    return words if words.startswith("must ") else f"is not valid: {words[:1].lower()}{words[1:]}"


def show(value: Any) -> str:
    """The beginning of a value, for a sentence."""
    try:
        return f"{value!r:.60}"
    except (RecursionError, ValueError):  # nested without end, or a number of thousands of digits
        return f"a {type(value).__name__} that cannot be shown"


# ---- groups of settings --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Base of each group of settings: a frozen pydantic dataclass, checked when it is made. Raises SettingError."""

    @model_validator(mode="wrap")
    @classmethod
    def _check(cls, values: Any, handler: ModelWrapValidatorHandler[Settings]) -> Settings:
        try:
            return handler(values)
        except ValidationError as error:
            if not error.errors()[0]["loc"]:  # not even a mapping, so no setting is at fault
                raise
            raise explain(error, {setting.name: setting.default for setting in settings_of(cls)}) from None


class Setting(NamedTuple):
    """One field of a group, for documentation and command line options."""

    name: str
    info: FieldInfo
    group: type[Settings]

    @property
    def meaning(self) -> str:
        """The meaning, with the unit: the text below the field; nothing without its source."""
        owner: Any = next(each for each in self.group.__mro__ if self.name in each.__annotations__)
        return " ".join((owner.__pydantic_fields__[self.name].description or "").split())

    @property
    def default(self) -> Any:
        """The value where nobody sets it."""
        return self.info.get_default(call_default_factory=True)

    @property
    def choices(self) -> tuple[str, ...]:
        """The only values; empty: any of its type."""
        return get_args(self.info.annotation) if get_origin(self.info.annotation) is Literal else ()

    @property
    def type(self) -> Any:
        """str (with or without choices), int, float, bool, tuple (of texts) or dict."""
        return str if self.choices else get_origin(self.info.annotation) or self.info.annotation


def settings_of(group: type[Settings]) -> tuple[Setting, ...]:
    """The fields of a group, in order of declaration."""
    fields: dict[str, FieldInfo] = group.__pydantic_fields__  # type: ignore[attr-defined]
    return tuple(Setting(name, info, group) for name, info in fields.items())


def change(group: S, changes: Mapping[str, Any], section: str = "") -> S:
    """The group with some settings replaced. section: what errors call it. Raises SettingError."""
    try:
        return replace(group, **changes)
    except SettingError as error:
        raise (error.renamed(f"{section}.{error.name}") if section else error) from None


def as_toml(value: Any) -> str:
    """A text, number, truth value, or a tuple or table of them, as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        # TOML's basic strings have JSON's escapes, but want DEL escaped too.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple):
        return f"[{', '.join(map(as_toml, value))}]"
    if isinstance(value, Mapping):
        keys = {key: key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else as_toml(key) for key in value}
        return f"{{{', '.join(f'{keys[key]} = {as_toml(item)}' for key, item in value.items())}}}"
    return repr(value)
