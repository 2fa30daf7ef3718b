"""Strict, frozen settings on pydantic: what each field means, and one sentence for a value that it cannot have."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)
from pydantic.dataclasses import dataclass
from pydantic.fields import FieldInfo
from pydantic_core import ArgsKwargs, CoreSchema
from pydantic_core.core_schema import no_info_after_validator_function

from tandem import plugins
from tandem.errors import ConfigError, nearest

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, ser_json_inf_nan="constants")
"""A value must have its type ("1" is no number), be finite unless its field says otherwise, and belong to a field that
exists."""


def _texts(value: Any) -> Any:
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


Texts = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_texts)]
"""Texts that are not empty; a list is taken too, and one text stands for a list of one."""


class WordOrPath(NamedTuple):
    """An annotation of a text that is one of some words, or a path, which has a slash or a dot."""

    words: tuple[str, ...]
    example: str  # of a path

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_after_validator_function(self._check, handler(source))

    def is_path(self, value: str) -> bool:
        """Whether it is no word, and looks like a path."""
        return value not in self.words and ("/" in value or "." in value)

    def _check(self, value: str) -> str:
        if value not in self.words and not self.is_path(value):
            raise ValueError(value)
        return value


class PluginName(NamedTuple):
    """An annotation of a text that is one of some words, the name of a plugin, or the address of code of one's own."""

    kind: plugins.Kind
    words: tuple[str, ...]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_after_validator_function(self._check, handler(source))

    @property
    def choices(self) -> tuple[str, ...]:
        """The words, and `EXTENSION` for all others."""
        return (*self.words, EXTENSION)

    def _check(self, value: str) -> str:
        if (
            value not in self.words
            and not plugins.ADDRESS.fullmatch(value)
            and not plugins.has(self.kind, value)
        ):
            raise ValueError(value)
        return value


EXTENSION = "MODULE:FUNCTION"
"""Code of one's own, see `tandem.config.extensions`."""

S = TypeVar("S", bound="Settings")
_SIGNS: tuple[tuple[type, str, str, str], ...] = (
    (Ge, "ge", ">=", "of at least"),
    (Gt, "gt", ">", "above"),
    (Le, "le", "<=", "of at most"),
    (Lt, "lt", "<", "below"),
)


class SettingError(ConfigError):
    """A setting has a name or value that it cannot have."""

    def __init__(self, sentence: str, name: str = "", value: Any = None, problem: str = "") -> None:
        """problem: what the sentence says of the setting, without what it calls it."""
        super().__init__(sentence, option=name)
        self.name, self.value, self.problem = name, value, problem


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Base of each group of settings: a frozen pydantic dataclass, checked when it is made. Raises SettingError."""

    @model_validator(mode="wrap")
    @classmethod
    def _check(cls, values: Any, handler: ModelWrapValidatorHandler[Settings]) -> Settings:
        try:
            return handler(values)
        except ValidationError as error:
            place = error.errors(include_url=False)[0]["loc"]
            if not place:  # not even a mapping, so no setting is at fault
                raise
            name = str(place[0])
            kwargs = values.kwargs if isinstance(values, ArgsKwargs) else values
            raise _explain(cls, name, (kwargs or {})[name]) from None


class Setting(NamedTuple):
    """One field of a group, for error sentences, documentation and command line options."""

    name: str
    info: FieldInfo

    @property
    def meaning(self) -> str:
        """The meaning, with the unit."""
        return self.info.description or ""

    @property
    def default(self) -> Any:
        """Its value where nobody sets it."""
        return self.info.get_default(call_default_factory=True)

    @property
    def choices(self) -> tuple[str, ...]:
        """The only values, `EXTENSION` among them where custom code may be named; empty: any of its type."""
        for entry in self.info.metadata:
            if isinstance(entry, PluginName):
                return entry.choices
        return tuple(name for part in self._parts if get_origin(part) is Literal for name in get_args(part))

    @property
    def _parts(self) -> tuple[Any, ...]:
        """The members of a union; otherwise the type itself."""
        annotation = self.info.annotation
        return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)

    @property
    def words(self) -> WordOrPath | None:
        """The words that it takes besides a path; None for other settings."""
        return next((entry for entry in self.info.metadata if isinstance(entry, WordOrPath)), None)

    @property
    def type(self) -> Any:
        """str (with or without choices), int, float, bool or tuple (of texts)."""
        return str if self.choices else get_origin(self.info.annotation) or self.info.annotation

    @property
    def range(self) -> str:
        """As in ">= 0, < 1"; empty: no limits."""
        return ", ".join(f"{sign} {limit:g}" for sign, _, limit in self._limits())

    @property
    def expected(self) -> str:
        """The values that it takes, in words."""
        if self.choices:
            return f"one of {', '.join(self.choices)}" if len(self.choices) > 1 else self.choices[0]
        if self.words:
            return f"{', '.join(self.words.words)}, or a path such as {self.words.example}"
        is_filled = any(isinstance(limit, MinLen) for limit in self.info.metadata)
        nouns = {
            str: "a text that is not empty" if is_filled else "a text",
            tuple: "a text or a list of texts, none of them empty",
            int: "a whole number",
            float: "a number",
            bool: "true or false",
            dict: "a table of texts, numbers and truth values",
        }
        limits = " and ".join(f"{words} {limit:g}" for _, words, limit in self._limits())
        noun = nouns.get(self.type) or f"a {self.type.__name__}"
        return f"{noun} {limits}".rstrip()

    def _limits(self) -> list[tuple[str, str, float]]:
        return [
            (sign, words, getattr(limit, attribute))
            for kind, attribute, sign, words in _SIGNS
            for limit in self.info.metadata
            if isinstance(limit, kind)
        ]


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


def settings_of(group: type[Settings]) -> tuple[Setting, ...]:
    """The fields of a group, in order of declaration."""
    fields: dict[str, FieldInfo] = group.__pydantic_fields__  # type: ignore[attr-defined]
    return tuple(Setting(name, info) for name, info in fields.items())


def change(group: S, changes: Mapping[str, Any], section: str, defaults: Settings | None = None) -> S:
    """The group with some settings replaced; errors name its section and its defaults. Raises SettingError."""
    known = {setting.name: setting for setting in settings_of(type(group))}
    try:
        return replace(group, **changes)
    except SettingError as error:
        if error.name not in known:
            raise
        default = getattr(defaults or type(group)(), error.name)
        raise wrong_value(known[error.name], error.value, section, default) from None


def wrong_value(setting: Setting, value: Any, section: str, default: Any) -> SettingError:
    """The error for a value that a setting cannot have. section: "" where it is not known."""
    remedy = f"the default is {as_toml(default)}"
    words = setting.words.words if setting.words else setting.choices
    if words and isinstance(value, str):
        names = [name for name in words if name != EXTENSION]
        remedy = f"the nearest is {as_toml(nearest(value, names))}"
        if EXTENSION in setting.choices and ":" in value:
            remedy = 'name a function of a module, such as "my_package.my_module:make"'
    key = f"{section}.{setting.name}" if section else setting.name
    problem = f"must be {setting.expected}, but it is {value!r}; {remedy}."
    return SettingError(f"The setting {key} {problem}", setting.name, value, problem)


def _explain(group: type[Settings], name: str, value: Any) -> SettingError:
    known = {setting.name: setting for setting in settings_of(group)}
    if name not in known:
        sentence = f"The setting {name} does not exist; the nearest is {nearest(name, known)!r}."
        return SettingError(sentence, name, value)
    return wrong_value(known[name], value, "", known[name].default)
