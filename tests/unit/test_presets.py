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


def load(tmp_path: Path, text: str, *overrides: str) -> Config:
    path = tmp_path / "tandem.toml"
    path.write_text(text, "utf-8")
    return Config.load(path, overrides)


def described(config: Config) -> dict[Party, dict[str, Any]]:
    codec = codec_of(config.codec).fingerprint()
    policy = config.decoding.length_policy
    loaded = {"codec": codec, "race_depth": config.codec.race_depth, "length_policy": policy}
    return {party: {"decode_line": [], "eos_token_ids": [1], **loaded} for party in PARTIES}


@pytest.mark.parametrize("name", PRESETS)
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


def test_a_question_takes_the_settings_of_its_preset_and_votes_with_its_codec() -> None:
    """Parties that have loaded "auto" have top_p too."""
    config = Config()
    loaded = described(config)
    assert build_spec(config, loaded, "?").rules.has_race_lists
    for own in ({}, {"placement": "cloud"}, {"draft_rule": "coupled", "placement": "mirror"}):
        spec = build_spec(config, loaded, "?", preset="dragon", **own)
        wanted = {"draft_rule": "algorithm1", "placement": "greedy"} | own
        assert (spec.decoding.draft_rule, spec.decoding.placement) == tuple(wanted.values())
        assert not spec.rules.has_race_lists


def test_a_question_cannot_change_the_codec() -> None:
    config = Config.load(None, ["codec.parameters={p = 0.9}"])
    with pytest.raises(ConfigError) as caught:
        build_spec(config, described(config), "?", preset="dragon")
    assert str(caught.value) == (
        "The preset 'dragon' needs the codec top_p/2(p=0.8, max_tokens=4096), but the parties have loaded "
        "top_p/2(p=0.9, max_tokens=4096); start them again with preset=dragon."
    )


def test_an_unknown_preset_is_one_sentence(tmp_path: Path) -> None:
    nearest = r"^There is no preset 'dragoon'; did you mean dragon\?$"
    with pytest.raises(ConfigError, match=nearest):
        Config.load(None, ["preset=dragoon"])
    with pytest.raises(ConfigError, match=nearest):
        build_spec(Config(), described(Config()), "?", preset="dragoon")
    with pytest.raises(ConfigError, match=r"^There is no preset 3; choose one of dragon"):
        load(tmp_path, "preset = 3\n")
