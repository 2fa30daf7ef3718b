"""Named sets of settings, one for each paper that Tandem implements: `preset = "dragon"`.

A preset stands for its rows of `PRESETS`. Whatever a file, an override or an option sets besides counts instead.

- dragon: DRAGON (Liu et al.). Each party sends the nucleus of its distribution with p = 0.8 (section 7.1), drafts stand
  by Algorithm 1 (section 4.2), and the aggregator is the party with which a token costs less (section 5.1, Eq. 8).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tandem.errors import ConfigError
from tandem.nearest import did_you_mean

KEY = "preset"
"""What the settings call it; it belongs to no section."""

PRESETS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "dragon": {
        "codec": {"name": "top_p", "p": 0.8},
        "decoding": {"draft_rule": "algorithm1", "placement": "greedy", "synchronous": False},
    },
}
"""Preset -> section -> name -> value."""


def settings_of_preset(name: object) -> Mapping[str, Mapping[str, Any]]:
    """Section -> name -> value. Raises ConfigError if there is no such preset."""
    if not isinstance(name, str) or name not in PRESETS:
        raise ConfigError(f"There is no preset {name!r:.80}; {did_you_mean(str(name), PRESETS)}")
    return PRESETS[name]


def expand(values: Mapping[str, Any], preset: str | None = None) -> dict[str, Any]:
    """The values of a file, by section, with those of its preset, or of another one, where the file says nothing.

    preset: counts instead of the one in the file. Raises ConfigError if there is no such preset.
    """
    own = {section: group for section, group in values.items() if section != KEY}
    name = preset if preset is not None else values.get(KEY)
    for section, group in {} if name is None else settings_of_preset(name).items():
        if isinstance(
            own.setdefault(section, {}), Mapping
        ):  # else it is no section, which is found out later
            own[section] = {**group, **own[section]}
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
