"""Named sets of settings, one for each paper that Tandem implements: `preset = "dragon"`.

A preset stands for its rows of `PRESETS`. Whatever a file, an override or an option sets besides counts instead.

- dragon: DRAGON (Liu et al.). Each party sends the nucleus of its distribution with p = 0.8 (section 7.1), drafts stand
  by Algorithm 1 (section 4.2), and the aggregator is the party with which a token costs less (section 5.1, Eq. 8).
  NOT in the paper: weights of documents are static, by the retriever's score alone. The paper estimates relevance again
  during the answer (section 4.1), which Tandem does not (`tandem.aggregation.document_weights`).
- sqs: SQS (arXiv 2510.09942). The device sends its K most probable tokens on a lattice of 1/100 (K-SQS), drafts stand
  by rejection, one proposal at a time, of as many tokens as fit 5,000 bits. NOT in the paper: ids and whole bytes are
  counted, and 16 tokens are the most (18 in the paper).
- qs: QS (arXiv 2507.00605). The device sends its whole distribution on a lattice of 1/240, drafts stand by rejection,
  one proposal at a time: a token more after a full acceptance, else as many as were accepted (their heuristic), at most
  12. NOT in the paper: no lattice of 1/720; their learned policy is `decoding.length_policy =
  "double_dqn"`.
- flexspec: FlexSpec. Ids travel, one proposal at a time, with the length of most tokens per second, up to 16.
  NOT in the paper: lengths are chosen by the right count of tokens, and drafts are coupled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tandem.errors import ConfigError, did_you_mean

KEY = "preset"
"""The key of a preset in settings; it belongs to no section."""

PRESETS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "dragon": {
        "codec": {"name": "top_p", "parameters": {"p": 0.8}},
        "decoding": {
            "mode": "dual",
            "draft_rule": "algorithm1",
            "placement": "greedy",
        },
        "weights": {"question": 0.0, "evidence": 0.0},
    },
    "sqs": {
        "codec": {
            "name": "k_sqs",
            "parameters": {"k": 16, "resolution": 100, "index": "paper"},
        },
        "decoding": {
            "mode": "speculative",
            "draft_rule": "rejection",
            "max_proposal": 16,
            "uplink_budget_bits": 5000,
            "pacing": "stop_and_wait",
        },
    },
    "qs": {
        "codec": {
            "name": "lattice",
            "parameters": {"resolution": 240, "index": "paper"},
        },
        "decoding": {
            "mode": "speculative",
            "draft_rule": "rejection",
            "max_proposal": 12,
            "length_policy": "last_accepted",
            "pacing": "stop_and_wait",
        },
    },
    "flexspec": {
        "decoding": {
            "mode": "speculative",
            "draft_rule": "coupled",
            "max_proposal": 16,
            "length_policy": "best",
            "pacing": "stop_and_wait",
        },
    },
}
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
