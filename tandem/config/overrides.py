"""A tree of settings by key: `section.name`, what may stand there, and which keys of version 0.1 were renamed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from tandem.config import toml
from tandem.config.parties import WorkerConfig
from tandem.config.validation import Setting, Settings, change, settings_of, wrong_value
from tandem.errors import ConfigError, nearest

S = TypeVar("S", bound=Settings)

RENAMED = {
    "generation.temperature": "sampling.temperature",
    "generation.max_new_tokens": "sampling.max_new_tokens",
    "generation.stop": "sampling.stop",
    "generation.draft_rule": "decoding.draft_rule",
    "generation.placement": "decoding.placement",
    "generation.synchronous": "decoding.synchronous",
    "generation.max_window": "decoding.max_window",
}
"""Keys of version 0.1 and what they are today."""

REMOVED = ("device.decode_floor_s", "cloud.decode_floor_s", "link.extra_delay_s", "link.extra_jitter_s")
"""Settings of version 0.1 for experiments, which `tandem lab bench` now sets by itself."""


REPLACED = {
    "weights.interval": "weights.evidence",
    "weights.lag": "weights.memory",
    "weights.momentum": "weights.memory",
}
"""Settings of re-estimated relevance, and the nearest of those that weigh documents now."""


TABLES: Mapping[str, type[Settings]] = {"workers": WorkerConfig}
"""Fields of a tree that hold groups by a name that the user chooses: sections such as [workers.alice]."""


def sections_of(tree: Settings) -> dict[str, Settings]:
    """The groups of a tree of settings, by section."""
    sections: dict[str, Settings] = {}
    for field in fields(tree):
        group = getattr(tree, field.name)
        if field.name in TABLES:
            sections |= {f"{field.name}.{name}": member for name, member in group.items()}
        else:
            sections[field.name] = group
    return sections


def walk(tree: Settings) -> Iterable[tuple[str, Setting, Any]]:
    """Section, declaration and value of every setting of a tree, in order of declaration."""
    for section, group in sections_of(tree).items():
        for setting in settings_of(type(group)):
            yield section, setting, getattr(group, setting.name)


def replace_settings(tree: S, changes: Mapping[str, Any]) -> S:
    """The tree with some settings replaced. changes: section -> name -> value, as in TOML. Raises ConfigError."""
    changes = _by_section(tree, changes)
    for section, values in changes.items():
        if not isinstance(values, Mapping):
            raise unknown(section, tree, f"is no section but has the value {values!r}")
        for name in values:
            find(f"{section}.{name}", tree)
        if section not in sections_of(tree) and _new_member(section) is None:
            raise unknown(section, tree)
    present, defaults = sections_of(tree), sections_of(type(tree)())
    replaced: dict[str, Any] = {name: dict(getattr(tree, name)) for name in TABLES if hasattr(tree, name)}
    for section, values in changes.items():
        default = _new_member(section) or defaults[section]
        group = change(present.get(section, default), values, section, default)
        table, _, name = section.partition(".")
        if table in TABLES:
            replaced[table][name] = group
        else:
            replaced[section] = group
    return replace(tree, **replaced)


def parse(assignments: Iterable[str], tree: Settings) -> dict[str, dict[str, Any]]:
    """Values of "section.name=value", by section and name. Texts need no quotes; one text stands for a list of one."""
    changes: dict[str, dict[str, Any]] = {}
    for text in assignments:
        key, equals, raw = (part.strip() for part in text.partition("="))
        if not equals:
            raise ConfigError(
                f"Settings have the form section.name=value, but {text!r} has no equals sign; add it."
            )
        section, setting, default = find(key, tree)
        try:
            changes.setdefault(section, {})[setting.name] = _value(raw, setting)
        except ValueError:
            raise wrong_value(setting, raw, section, default) from None
    return changes


def find(key: str, tree: Settings) -> tuple[str, Setting, Any]:
    """Section, declaration and default of a key. Raises ConfigError where there is none."""
    known = {f"{entry[0]}.{entry[1].name}": entry for entry in (*walk(type(tree)()), *_walk_member(key))}
    if key not in known:
        raise unknown(key, tree)
    return known[key]


def unknown(key: str, tree: Settings, problem: str = "is not a setting") -> ConfigError:
    """The error for a key that does not exist: its new name if it was renamed, else the nearest."""
    renamed = {old: new for old, new in RENAMED.items() if key in (old, old.partition(".")[0])}
    if renamed:
        pairs = ", ".join(f"{old} is now {new}" for old, new in renamed.items())
        return ConfigError(f"{pairs}; rename {'it' if len(renamed) == 1 else 'them'}.")
    if key in REMOVED:
        return ConfigError(
            f"{key} was for experiments and is no setting any more; remove it, see `tandem lab bench`."
        )
    if key in REPLACED:
        return ConfigError(
            f"{key} is gone, since documents are weighed by how well they predict the answer; remove it, the nearest "
            f"setting is {REPLACED[key]}."
        )
    keys = [f"{section}.{setting.name}" for section, setting, _ in (*walk(tree), *_walk_member(key))]
    return ConfigError(f"{key!r} {problem}; the nearest is {nearest(key, keys)!r}.")


def to_toml(tree: Settings, *, only_changed: bool = False) -> str:
    """The tree as a TOML file, each setting with its meaning. only_changed: those with their default are comments."""
    lines: list[str] = []
    defaults = sections_of(type(tree)())
    for section, setting, value in walk(tree):
        if f"[{section}]" not in lines:
            lines += ["", f"[{section}]"]
        choices = f": {' | '.join(setting.choices)}" if len(setting.choices) > 1 else ""
        default = getattr(_new_member(section) or defaults[section], setting.name)
        mark = "# " if only_changed and value == default else ""
        lines.append(f"{mark}{setting.name} = {toml.dump(value)}  # {setting.meaning}{choices}")
    return "\n".join(lines[1:]) + "\n"


def _by_section(tree: Settings, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The same with tables of groups taken apart: "workers" -> "alice" -> ... becomes "workers.alice" -> ..."""
    sections: dict[str, Any] = {}
    for section, values in changes.items():
        if section not in TABLES:
            sections[section] = values
        elif not isinstance(values, Mapping):
            example = f"[{section}.alice]"
            raise ConfigError(
                f"{section!r} holds a section for each member, such as {example}, not {values!r:.80}; write that."
            )
        else:
            sections |= {f"{section}.{name}": group for name, group in values.items()}
    return sections


def _new_member(section: str) -> Settings | None:
    """A group with all defaults, where the section belongs to a table of groups."""
    table, _, name = section.partition(".")
    return TABLES[table]() if table in TABLES and name else None


def _walk_member(key: str) -> Iterable[tuple[str, Setting, Any]]:
    """As `walk`, of the member of a table that a key may name."""
    section = key.rpartition(".")[0]
    if (member := _new_member(section)) is not None:
        for setting in settings_of(type(member)):
            yield section, setting, getattr(member, setting.name)


def _value(raw: str, setting: Setting) -> Any:
    """The value of a setting from a command line. ValueError if it cannot be read."""
    if setting.type is str and not raw.startswith('"'):
        return raw
    if setting.type is tuple and not raw.startswith(("[", '"')):
        return (raw,)
    value = toml.parse(raw)
    return (value,) if setting.type is tuple and isinstance(value, str) else value
