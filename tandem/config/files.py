"""Settings as text: TOML files, `section.name=value`, and presets, one for each paper that Tandem implements."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from tandem.config.checks import Setting, Settings, as_toml, change, settings_of
from tandem.config.parties import WorkerConfig
from tandem.errors import ConfigError, did_you_mean, nearest

HEADER = """\
# Settings of Tandem. What is left out keeps its default.
# Use: tandem ask --config FILE; a file called tandem.toml is used from its own folder without that."""
KEY = "preset"
"""The key of a preset in settings; it belongs to no section."""

PRESETS_FILE = Path(__file__).parent / "presets.toml"
PRESETS: Mapping[str, Mapping[str, Mapping[str, Any]]] = tomllib.loads(PRESETS_FILE.read_text("utf-8"))
"""Preset -> section -> name -> value."""


def settings_of_preset(name: object) -> Mapping[str, Mapping[str, Any]]:
    """Section -> name -> value. Raises ConfigError if there is no such preset."""
    if not isinstance(name, str) or name not in PRESETS:
        raise ConfigError(f"There is no preset {name!r:.80}; {did_you_mean(str(name), PRESETS)}", option=KEY)
    return PRESETS[name]


def expand(values: Mapping[str, Any], preset: str | None = None) -> dict[str, Any]:
    """The values of a file, by section, with those of its preset, or of another one, where the file says nothing.

    preset: counts instead of the one in the file. Raises ConfigError if there is no such preset.
    """
    own = {section: group for section, group in values.items() if section != KEY}
    name = preset if preset is not None else values.get(KEY)
    for section, group in {} if name is None else settings_of_preset(name).items():
        chosen = own.setdefault(section, {})
        if isinstance(chosen, Mapping):  # else it is no section, which is found out later
            own[section] = {**group, **chosen}
    return own


def take_preset(overrides: Sequence[str]) -> tuple[str | None, list[str]]:
    """The preset that overrides of the form "key=value" name last, None if none does; and the others."""
    name, others = None, []
    for text in overrides:
        key, equals, value = (part.strip() for part in text.partition("="))
        if key == KEY and equals:
            name = value.strip('"')
        else:
            others.append(text)
    return name, others


S = TypeVar("S", bound=Settings)

TABLES: Mapping[str, type[Settings]] = {"workers": WorkerConfig}
"""Fields of a tree that hold groups by a name that the user chooses: sections such as [workers.alice]."""

REMOVED: Mapping[str, str] = {
    **dict.fromkeys(
        ("device.num_decoders", "cloud.num_decoders", "server.num_decoders"), "a party has one decoder"
    ),
    "cluster.keep_unfinished": "asking again with the same seed gives the same answer",
    "cluster.address": "--address HOST:PORT or Tandem.connect(ADDRESS) names a cluster",
    "cluster.light_actors": "actors share a process in mode federated",
    "devices.max_bytes_per_s": "a device may send 4 MiB per second",
    "devices.max_devices": "64 devices may be connected at once",
    "http.drain_timeout_s": "open answers have a minute to end",
    "http.max_connections": "there are 512 at most",
    "http.max_connections_per_address": "one address has 128 at most",
    "http.max_queries": "two are open for each of cluster.max_sessions",
    "http.request_timeout_s": "a client has 20 s for a request",
    "link.peer_stall_s": "a peer may owe a vote for 15 s, or as long as its own pace suggests",
    "retrieval.chunk_overlap": "neighbouring chunks share an eighth",
    "retrieval.chat_query": "documents are found by the last question of a conversation",
    "weights.memory": "0.8 of the evidence is kept at each token",
}
"""Settings of 0.2.0 that are gone: what stands in their place."""


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a file of settings. Raises ConfigError."""
    try:
        return tomllib.loads(path.read_text("utf-8-sig"))
    except FileNotFoundError:
        problem, remedy = "does not exist", "check the path"
    except UnicodeDecodeError:
        problem, remedy = "is not UTF-8 text", "save it as UTF-8"
    except OSError as error:
        problem, remedy = f"cannot be read ({error.strerror})", "check its permissions"
    except tomllib.TOMLDecodeError as error:
        problem, remedy = f"is not valid TOML ({error})", "correct that line"
    raise ConfigError(f"The settings file {path} {problem}; {remedy}.")


def write_toml(tree: Settings, *, only_changed: bool = False) -> str:
    """The tree as a TOML file, each setting with its meaning. only_changed: those with their default are comments."""
    lines: list[str] = []
    for section, setting, value in walk(tree):
        if f"[{section}]" not in lines:
            lines += ["", f"[{section}]"]
        choices = f": {' | '.join(setting.choices)}" if len(setting.choices) > 1 else ""
        mark = "# " if only_changed and value == getattr(_defaults(section, tree), setting.name) else ""
        lines.append(f"{mark}{setting.name} = {as_toml(value)}  # {setting.meaning}{choices}")
    return "\n".join(lines[1:]) + "\n"


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
    groups: dict[str, Any] = {name: dict(getattr(tree, name)) for name in TABLES if hasattr(tree, name)}
    present = sections_of(tree)
    for section, values in _by_section(changes).items():
        if not isinstance(values, Mapping):
            raise unknown(section, tree, f"is no section but has the value {values!r}")
        for name in values:
            find(f"{section}.{name}", tree)
        group = change(present.get(section) or _defaults(section, tree), values, section)
        table, _, name = section.partition(".")
        if table in TABLES:
            groups[table][name] = group
        else:
            groups[section] = group
    return replace(tree, **groups)


def parse_overrides(assignments: Iterable[str], tree: Settings) -> dict[str, dict[str, Any]]:
    """Values of "section.name=value", by section and name. Texts need no quotes; one text stands for a list of one.

    Raises ConfigError.
    """
    changes: dict[str, dict[str, Any]] = {}
    for text in assignments:
        key, equals, raw = (part.strip() for part in text.partition("="))
        if not equals:
            raise ConfigError(
                f"Settings have the form section.name=value, but {text!r} has no equals sign; add it."
            )
        section, setting = find(key, tree)
        changes.setdefault(section, {})[setting.name] = _value(raw, setting)
    return changes


def find(key: str, tree: Settings) -> tuple[str, Setting]:
    """Section and declaration of a key. Raises ConfigError where there is none."""
    section, _, name = key.rpartition(".")
    if section:
        group = _defaults(section, tree, key)
        for setting in settings_of(type(group)):
            if setting.name == name:
                return section, setting
    raise unknown(key, tree)


def unknown(key: str, tree: Settings, problem: str = "is not a setting") -> ConfigError:
    """The error for a key that does not exist: it names what replaced it, or the nearest one."""
    if key in REMOVED:
        return ConfigError(f"The setting {key} was removed: {REMOVED[key]}.")
    keys = [f"{section}.{setting.name}" for section, setting, _ in walk(tree)]
    section = key.rpartition(".")[0]
    if member := _new_member(section):
        keys += [f"{section}.{setting.name}" for setting in settings_of(type(member))]
    return ConfigError(f"{key!r} {problem}; the nearest is {nearest(key, keys)!r}.")


def _by_section(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The values with tables of groups taken apart: "workers" -> "alice" -> ... becomes "workers.alice" -> ..."""
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


def _defaults(section: str, tree: Settings, key: str = "") -> Settings:
    """A section's group with all defaults. key: what an error names, if not the section. Raises ConfigError."""
    group = _new_member(section) or sections_of(type(tree)()).get(section)
    if group is None:
        raise unknown(key or section, tree)
    return group


def _new_member(section: str) -> Settings | None:
    """A group with all defaults, where the section belongs to a table of groups."""
    table, _, name = section.partition(".")
    return TABLES[table]() if table in TABLES and name else None


def _value(raw: str, setting: Setting) -> Any:
    """The value of a setting from a command line; what is not written as TOML has it is a text."""
    if setting.type is str and not raw.startswith('"'):
        return raw
    if setting.type is tuple and not raw.startswith(("[", '"')):
        return (raw,)
    try:
        value = tomllib.loads(f"value = {raw}")["value"]
    except ValueError:
        return raw
    return (value,) if setting.type is tuple and isinstance(value, str) else value
