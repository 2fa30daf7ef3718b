"""Settings: defaults, files, overrides, and the sentence for each mistake."""

from __future__ import annotations

import math
import os
import re
import tomllib
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem import settings
from tandem.config import Config, GenerationConfig, PartyConfig
from tandem.errors import ConfigError
from tandem.topology import Party

EXAMPLE = Path(__file__).parents[2] / "tandem.example.toml"


def write(folder: Path, text: str) -> Path:
    path = folder / "tandem.toml"
    path.write_text(text, "utf-8")
    return path


def test_defaults() -> None:
    config = Config.load()
    assert config == Config()
    assert (config.device.num_documents, config.cloud.num_documents) == (4, 16)
    assert config.party(Party.CLOUD) is config.cloud
    with pytest.raises(FrozenInstanceError):
        config.cloud.index = "elsewhere"  # type: ignore[misc]


def test_the_example_file_equals_the_defaults() -> None:
    from tandem.cli.show import HEADER

    text = EXAMPLE.read_text("utf-8")
    assert text == f"{HEADER}\n\n{Config().to_toml()}", "run: tandem config > tandem.example.toml"
    assert Config.load(EXAMPLE) == Config()


def test_every_setting_says_what_it_means() -> None:
    for each in settings.settings_of(Config):
        assert len(each.rule.meaning) > 3, each.key


def test_a_file_changes_only_what_it_names(tmp_path: Path) -> None:
    config = Config.load(
        write(tmp_path, "[cloud]\nnum_threads = 2\n[generation]\ntemperature = 1\nstop = ['.']\n")
    )
    assert config.cloud == PartyConfig(num_documents=16, num_threads=2)
    assert config.generation == GenerationConfig(temperature=1.0, stop=(".",))
    assert isinstance(config.generation.temperature, float)


def test_overrides_win_and_need_no_quotes(tmp_path: Path) -> None:
    path = write(tmp_path, "generation.placement = 'cloud'\n")
    overrides = [
        "generation.placement=mirror",
        "weights.scale = 5",
        'generation.stop="\\n"',
        "cloud.model=org/name",
    ]
    config = Config.load(path, overrides)
    assert config.generation.placement == "mirror"
    assert config.weights.scale == 5.0
    assert config.generation.stop == ("\n",)
    assert config.cloud.model == "org/name"


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("generation.stop=END", ("END",)),
        ('generation.stop=["a", "b"]', ("a", "b")),
        ("generation.synchronous=true", True),
        ('cluster.address="a=b"', "a=b"),
        ("cluster.address=", ""),
    ],
)
def test_override_values(override: str, expected: object) -> None:
    config = Config.load(None, [override])
    section, name = override.partition("=")[0].split(".")
    assert getattr(getattr(config, section), name) == expected


def test_relative_paths_count_from_where_they_were_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, "[device]\nindex = 'mine'\nmodel = './model'\n[cloud]\nmodel = 'org/name'\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    config = Config.load(path, ["cloud.index=public", "retrieval.embedder=~/embedder"])
    assert config.device.index == str(tmp_path / "mine")
    assert config.device.model == str(tmp_path / "model")
    assert config.cloud.index == str(elsewhere / "public")
    assert config.cloud.model == "org/name"
    assert config.retrieval.embedder == os.path.expanduser("~/embedder")


def test_json_there_and_back() -> None:
    config = Config.load(None, ['generation.stop=["\\u00e9", "."]', "generation.temperature=0.7"])
    assert Config.from_json(config.to_json()) == config


@given(
    st.text(min_size=1).filter(lambda text: not text.startswith((".", "/", "~"))),
    st.lists(st.text(min_size=1), max_size=3),
    st.floats(0, 100),
)
def test_toml_there_and_back(model: str, stop: list[str], temperature: float) -> None:
    config = replace(
        Config(),
        cloud=PartyConfig(model=model, num_documents=8),
        generation=GenerationConfig(stop=tuple(stop), temperature=temperature),
    )
    assert settings.updated(Config(), tomllib.loads(config.to_toml())) == config


RANGE = "The setting {} must be {}, but it is {}; the default is {}."

WRONG = [
    (
        "generation.temprature=1",
        "'generation.temprature' is not a setting; the nearest is 'generation.temperature'.",
    ),
    ("temperature=1", "'temperature' is not a setting; the nearest is 'generation.temperature'."),
    ("devise.model=x", "'devise.model' is not a setting; the nearest is 'device.model'."),
    ("nonsense", "A setting is given as section.name=value, but 'nonsense' has no equals sign; add it."),
    (
        "generation.temperature=-1",
        RANGE.format("generation.temperature", "a number of at least 0", "-1.0", "0.0"),
    ),
    (
        "generation.temperature=hot",
        RANGE.format("generation.temperature", "a number of at least 0", "'hot'", "0.0"),
    ),
    (
        "generation.temperature=nan",
        RANGE.format("generation.temperature", "a number of at least 0", "nan", "0.0"),
    ),
    (
        "cloud.num_documents=-1",
        RANGE.format("cloud.num_documents", "a whole number of at least 0", "-1", "16"),
    ),
    ("codec.p=0", RANGE.format("codec.p", "a number above 0 and of at most 1", "0.0", "0.8")),
    ("codec.p=1.5", RANGE.format("codec.p", "a number above 0 and of at most 1", "1.5", "0.8")),
    (
        "weights.momentum=1",
        RANGE.format("weights.momentum", "a number of at least 0 and below 1", "1.0", "0.0"),
    ),
    ("device.model=", RANGE.format("device.model", "a text that is not empty", "''", '"bundled"')),
    ("generation.synchronous=1", RANGE.format("generation.synchronous", "true or false", "1", "false")),
    (
        "device.num_threads=true",
        RANGE.format("device.num_threads", "a whole number of at least 1", "True", "1"),
    ),
    (
        "generation.stop=[1]",
        RANGE.format("generation.stop", "a list of texts that are not empty", "(1,)", "[]"),
    ),
    (
        "generation.placement=mirorr",
        "The setting generation.placement must be one of device, cloud, greedy, mirror, but it is 'mirorr'; "
        'the nearest is "mirror".',
    ),
    (
        "retrieval.chunk_chars=100",
        "The setting retrieval.chunk_overlap must be below retrieval.chunk_chars, but they are 100 and 100; "
        "lower the overlap.",
    ),
]


@pytest.mark.parametrize(("override", "sentence"), WRONG, ids=[override for override, _ in WRONG])
def test_a_wrong_override_is_one_sentence(override: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(sentence)}$"):
        Config.load(None, [override])


def test_mirror_needs_coupled_drafts() -> None:
    with pytest.raises(
        ConfigError, match=r'"mirror" needs coupled drafts, but generation\.draft_rule is "algorithm1"'
    ):
        Config.load(None, ["generation.draft_rule=algorithm1", "generation.placement=mirror"])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "[generaton]\ntemperature = 0",
            "'generaton.temperature' is not a setting; the nearest is 'generation.temp",
        ),
        ("[generaton]", "'generaton' is not a setting"),
        ("generation = 3", "'generation' is no section but has the value 3"),
        ("[generation\n", "must be TOML, but .* is not .*line 1.*; correct that line"),
        ("[generation]\nmax_new_tokens = 2.5", "must be a whole number of at least 1, but it is 2.5"),
        ("[generation]\nstop = 'x'", "must be a list of texts that are not empty, but it is 'x'"),
        ("[device]\nindex = 3", "device.index must be a text that is not empty, but it is 3"),
        ("[codec]\np = '0.5'", "codec.p must be a number above 0 and of at most 1, but it is '0.5'"),
    ],
)
def test_a_wrong_file_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        Config.load(write(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml does not exist; check the path"):
        Config.load(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        Config.load(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b"# \xe9")
    with pytest.raises(ConfigError, match="must be UTF-8 text"):
        Config.load(tmp_path / "latin.toml")


@pytest.mark.parametrize("text", ["", "[]", "3", '{"device": {"modl": "x"}}'])
def test_json_is_as_strict_as_a_file(text: str) -> None:
    with pytest.raises(ConfigError):
        Config.from_json(text)


def test_settings_from_code_are_checked_too() -> None:
    with pytest.raises(ConfigError, match="must be a number of at least 0, but it is inf"):
        Config(generation=GenerationConfig(temperature=math.inf))


def test_each_party_is_told_its_own_paths_alone() -> None:
    config = Config.load(None, ["device.index=/home/ada/index", "cloud.model=./public"])
    assert "ada" not in config.seen_by(Party.CLOUD).to_json()
    assert config.seen_by(Party.CLOUD).cloud == config.cloud
    assert "public" not in config.seen_by(Party.DEVICE).to_json()
    assert config.seen_by(Party.DEVICE).device == config.device
