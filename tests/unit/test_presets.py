"""Presets: every one loads, what is set by hand counts instead, and the sentence for each mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tandem.client.request import build_spec
from tandem.codecs import codec_of
from tandem.config.files import PRESETS
from tandem.config.schema import Config, DecodingConfig
from tandem.errors import ConfigError
from tandem.topology import PARTIES, Party

EVERY = pytest.mark.parametrize("name", PRESETS)


def load(tmp_path: Path, text: str, *overrides: str) -> Config:
    path = tmp_path / "tandem.toml"
    path.write_text(text, "utf-8")
    return Config.load(path, overrides)


def described(config: Config) -> dict[Party, dict[str, Any]]:
    codec = codec_of(config.codec).fingerprint()
    policy = config.decoding.length_policy
    loaded = {"codec": codec, "race_depth": config.codec.race_depth, "length_policy": policy}
    return {party: {"decode_line": [], "eos_token_ids": [1], **loaded} for party in PARTIES}


@EVERY
def test_every_row_is_a_setting_and_arrives(name: str) -> None:
    config = Config.load(None, [f"preset={name}"])
    for section, group in PRESETS[name].items():
        for key, value in group.items():
            assert getattr(getattr(config, section), key) == value


def test_a_file_names_a_preset_and_an_override_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load(tmp_path, 'preset = "dragon"\n') == Config.load(None, ['preset = "dragon"'])
    monkeypatch.setitem(PRESETS, "other", {"weights": {"evidence": 3.0}})  # type: ignore[index]
    changed = load(tmp_path, 'preset = "dragon"\n', "preset=other")
    assert (changed.weights.evidence, changed.decoding) == (3.0, DecodingConfig())


def test_a_question_takes_the_settings_of_its_preset() -> None:
    config = Config()
    spec = build_spec(config, described(config), "?", preset="dragon")
    assert (spec.decoding.draft_rule, spec.decoding.placement) == ("algorithm1", "greedy")
    spec = build_spec(config, described(config), "?", preset="dragon", placement="cloud")
    assert (spec.decoding.draft_rule, spec.decoding.placement) == ("algorithm1", "cloud")


def test_a_question_with_the_codec_of_a_preset_votes_with_it_under_any_rule() -> None:
    """Parties that have loaded "auto" have top_p too."""
    config = Config()
    loaded = described(config)
    assert build_spec(config, loaded, "?").rules.has_race_lists
    spec = build_spec(config, loaded, "?", preset="dragon", draft_rule="coupled", placement="mirror")
    assert (spec.decoding.draft_rule, spec.rules.has_race_lists) == ("coupled", False)


def test_a_question_cannot_change_the_codec() -> None:
    config = Config.load(None, ["codec.parameters={p = 0.9}"])
    with pytest.raises(ConfigError) as caught:
        build_spec(config, described(config), "?", preset="dragon")
    assert str(caught.value) == (
        "The preset 'dragon' needs the codec top_p/2(p=0.8, max_tokens=4096), but the parties have loaded "
        "top_p/2(p=0.9, max_tokens=4096); start them again with preset=dragon."
    )


def test_an_unknown_preset_is_one_sentence(tmp_path: Path) -> None:
    nearest = "There is no preset 'dragoon'; did you mean dragon?"
    with pytest.raises(ConfigError, match=f"^{nearest.replace('?', '[?]')}$"):
        Config.load(None, ["preset=dragoon"])
    with pytest.raises(ConfigError, match=f"^{nearest.replace('?', '[?]')}$"):
        build_spec(Config(), described(Config()), "?", preset="dragoon")
    with pytest.raises(ConfigError, match=r"^There is no preset 3; choose one of dragon"):
        load(tmp_path, "preset = 3\n")
    with pytest.raises(ConfigError, match=r"^There is no preset ''; choose one of dragon"):
        Config.load(None, ["preset="])


@pytest.mark.parametrize(
    ("name", "rule", "policy", "longest"),
    [
        ("sqs", "rejection", "fixed", 16),
        ("qs", "rejection", "last_accepted", 12),
        ("flexspec", "coupled", "best", 16),
    ],
)
def test_papers_wait_for_each_verdict(name: str, rule: str, policy: str, longest: int) -> None:
    """What SQS, QS and FlexSpec have in common, and how the lengths of their proposals come about."""
    config = Config.load(None, [f"preset={name}"])
    spec = build_spec(config, described(config), "?", preset=name)
    assert (spec.decoding.mode, spec.decoding.pacing) == ("speculative", "stop_and_wait")
    assert (spec.decoding.draft_rule, spec.decoding.length_policy, spec.decoding.max_proposal) == (
        rule,
        policy,
        longest,
    )
    assert spec.rules.proposes(Party.DEVICE)
    assert not spec.rules.proposes(Party.CLOUD)
