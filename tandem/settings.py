"""How settings are declared and checked: frozen dataclasses whose fields carry their meaning and their range.

A section is a dataclass with fields from `setting`; a tree is a dataclass of sections. Both are read strictly:
an unknown key is an error that names the nearest valid one. Knows dataclasses and TOML values, and nothing of
what a setting is for.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import SequenceMatcher
from typing import Any, Literal, NamedTuple, TypeVar, cast, get_args, get_origin, get_type_hints

from tandem.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What one setting means and which values it may have."""

    meaning: str  # with the unit
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    may_be_empty: bool = False  # texts only


class Setting(NamedTuple):
    """One setting of a tree."""

    section: str
    name: str
    hint: Any  # str, int, float, bool, a Literal, or tuple[str, ...]
    rule: Rule
    default: Any

    @property
    def key(self) -> str:
        """How people and files call it."""
        return f"{self.section}.{self.name}"


def setting(default: T, meaning: str, **limits: Any) -> T:
    """A field of a section. limits: those of `Rule`. Returns a dataclass field, typed as its default."""
    return field(default=default, metadata={"rule": Rule(meaning=meaning, **limits)})


def settings_of(tree: type) -> tuple[Setting, ...]:
    """Every setting of a tree, in order of declaration."""
    return tuple(_walk(tree))


def _walk(tree: type) -> Iterator[Setting]:
    for section in fields(tree):
        defaults: Any = section.default
        hints = get_type_hints(type(defaults))
        for each in fields(defaults):
            rule = each.metadata["rule"]
            yield Setting(section.name, each.name, hints[each.name], rule, getattr(defaults, each.name))


def check(tree: Any) -> None:
    """Raises ConfigError for the first setting of a tree that has a wrong type or is out of range."""
    for each in settings_of(type(tree)):
        value = getattr(getattr(tree, each.section), each.name)
        if not (_has_type(value, each.hint) and _is_within(value, each.rule)):
            raise ConfigError(_wrong(each, value))


def updated(tree: T, values: Mapping[str, Any]) -> T:
    """A tree with some settings replaced, checked. values: section -> name -> value, as read from TOML."""
    known = {each.key: each for each in settings_of(type(tree))}
    if not isinstance(values, Mapping):
        raise ConfigError(
            f"Settings must be sections of names and values, but they are {values!r}; use to_json."
        )
    changes: dict[str, dict[str, Any]] = {}
    for section, entries in values.items():
        if not isinstance(entries, Mapping):
            raise unknown(section, known, f"is no section but has the value {entries!r}")
        for name, value in entries.items():
            key = f"{section}.{name}"
            if key not in known:
                raise unknown(key, known)
            changes.setdefault(section, {})[name] = _adapted(value, known[key].hint)
        if section not in {each.section for each in known.values()}:
            raise unknown(section, known)
    any_tree: Any = tree
    return cast(T, replace(any_tree, **{s: replace(getattr(tree, s), **new) for s, new in changes.items()}))


def assignment(text: str, tree: type) -> tuple[str, str, Any]:
    """Section, name and value of "section.name=value". Texts need no quotes; a single text stands for a list."""
    key, equals, raw = text.partition("=")
    key, raw = key.strip(), raw.strip()
    if not equals:
        raise ConfigError(
            f"A setting is given as section.name=value, but {text!r} has no equals sign; add it."
        )
    known = {each.key: each for each in settings_of(tree)}
    if key not in known:
        raise unknown(key, known)
    each = known[key]
    return each.section, each.name, _parsed(raw, each)


def unknown(key: str, known: Mapping[str, Setting], what: str = "is not a setting") -> ConfigError:
    """The error for a key that does not exist, naming the nearest that does."""
    return ConfigError(f"{key!r} {what}; the nearest is {nearest(key, list(known))!r}.")


def nearest(word: str, candidates: list[str]) -> str:
    """The candidate most like a word; the part after the last dot counts as much as the whole."""

    def likeness(candidate: str) -> float:
        tails = word.rpartition(".")[2], candidate.rpartition(".")[2]
        return max(_ratio(word, candidate), _ratio(*tails)) + _ratio(word, candidate) / 100

    return max(candidates, key=likeness)


def to_toml(tree: Any) -> str:
    """A tree as a TOML file, each setting with its meaning."""
    lines: list[str] = []
    for each in settings_of(type(tree)):
        if f"[{each.section}]" not in lines:
            lines += ["", f"[{each.section}]"]
        value = getattr(getattr(tree, each.section), each.name)
        lines.append(f"{each.name} = {_toml(value)}  # {_meaning(each)}")
    return "\n".join(lines[1:]) + "\n"


def _meaning(each: Setting) -> str:
    choices = get_args(each.hint) if get_origin(each.hint) is Literal else ()
    return f"{each.rule.meaning}: {' | '.join(choices)}" if len(choices) > 1 else each.rule.meaning


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        # TOML's basic strings have JSON's escapes, but want DEL escaped too.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple):
        return f"[{', '.join(_toml(item) for item in value)}]"
    return repr(value)


def _adapted(value: Any, hint: Any) -> Any:
    """A TOML or JSON value in the form of its setting; a wrong type stays as it is, for `check` to name."""
    if hint is float and type(value) is int:
        return float(value)
    if get_origin(hint) is tuple and isinstance(value, list):
        return tuple(value)
    return value


def _parsed(raw: str, each: Setting) -> Any:
    """The value of a setting from a command line."""
    is_text = each.hint is str or get_origin(each.hint) is Literal
    is_list = get_origin(each.hint) is tuple
    if (is_text and not raw.startswith('"')) or (is_list and not raw.startswith(("[", '"'))):
        return (raw,) if is_list else raw
    try:
        value = tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        raise ConfigError(_wrong(each, raw)) from None
    return (value,) if is_list and isinstance(value, str) else value


def _has_type(value: Any, hint: Any) -> bool:
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(isinstance(item, str) for item in value)
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, (int, float) if hint is float else hint)


def _is_within(value: Any, rule: Rule) -> bool:
    if isinstance(value, str):
        return bool(value) or rule.may_be_empty
    if isinstance(value, tuple):
        return all(value)
    return math.isfinite(value) and (
        (rule.at_least is None or value >= rule.at_least)
        and (rule.above is None or value > rule.above)
        and (rule.at_most is None or value <= rule.at_most)
        and (rule.below is None or value < rule.below)
    )


def _wrong(each: Setting, value: Any) -> str:
    remedy = f"the default is {_toml(each.default)}"
    if get_origin(each.hint) is Literal and isinstance(value, str):
        remedy = f"the nearest is {_toml(nearest(value, list(get_args(each.hint))))}"
    return f"The setting {each.key} must be {_expected(each)}, but it is {value!r}; {remedy}."


def _expected(each: Setting) -> str:
    """What may stand there, in words."""
    if get_origin(each.hint) is Literal:
        choices = get_args(each.hint)
        return f"one of {', '.join(choices)}" if len(choices) > 1 else choices[0]
    if get_origin(each.hint) is tuple:
        return "a list of texts that are not empty"
    empty = "" if each.rule.may_be_empty else " that is not empty"
    nouns = {str: f"a text{empty}", int: "a whole number", float: "a number", bool: "true or false"}
    return str(nouns[each.hint]) + _range(each.rule)


def _range(rule: Rule) -> str:
    limits = [("of at least", rule.at_least), ("above", rule.above), ("of at most", rule.at_most)]
    limits.append(("below", rule.below))
    words = [f"{word} {limit:g}" for word, limit in limits if limit is not None]
    return f" {' and '.join(words)}" if words else ""


def _ratio(one: str, other: str) -> float:
    return SequenceMatcher(None, one.lower(), other.lower()).ratio()
