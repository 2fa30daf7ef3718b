"""Settings: defaults, files, overrides, and the sentence for each mistake."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.client.request import build_spec
from tandem.codecs import codec_of
from tandem.config.files import HEADER, PRESETS, REMOVED, replace_settings, walk
from tandem.config.schema import Config, DecodingConfig, PartyConfig, SamplingParams
from tandem.errors import ConfigError
from tandem.topology import PARTIES, Party

EXAMPLE = Path(__file__).parents[2] / "tandem.example.toml"


def write(folder: Path, text: str) -> Path:
    path = folder / "tandem.toml"
    path.write_text(text, "utf-8")
    return path


def test_the_example_file_equals_the_defaults() -> None:
    text = EXAMPLE.read_text("utf-8")
    assert text == f"{HEADER}\n\n{Config().to_toml()}", "run: python docs/generate.py"
    assert Config.load(EXAMPLE) == Config().with_names()


def test_every_setting_says_what_it_means() -> None:
    for section, setting, _ in walk(Config()):
        assert len(setting.meaning) > 3, f"{section}.{setting.name}"


def test_a_file_changes_only_what_it_names_and_overrides_win(tmp_path: Path) -> None:
    text = (
        "decoding.placement = 'cloud'\n[cloud]\nnum_threads = 2\n[sampling]\ntemperature = 1\nstop = ['.']\n"
    )
    config = Config.load(write(tmp_path, text), ["decoding.placement=mirror", "weights.evidence = 5"])
    assert config.cloud == PartyConfig(num_documents=16, num_threads=2).with_names()
    assert config.sampling == SamplingParams(temperature=1.0, stop=(".",))
    assert isinstance(config.sampling.temperature, float)
    assert config.decoding.placement == "mirror"
    assert config.weights.evidence == 5.0


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("sampling.stop=END", ("END",)),
        ('sampling.stop="\\n"', ("\n",)),
        ('sampling.stop=["a", "b"]', ("a", "b")),
        ("cloud.model=org/name", "org/name"),
        ("link.allow_plain=true", True),
        ('link.host="a=b"', "a=b"),
        ("link.host=", ""),
    ],
)
def test_overrides_need_no_quotes(override: str, expected: object) -> None:
    section, name = override.partition("=")[0].split(".")
    assert getattr(getattr(Config.load(None, [override]), section), name) == expected


@pytest.mark.parametrize("key", REMOVED)
def test_what_was_removed_says_what_stands_in_its_place(tmp_path: Path, key: str) -> None:
    section, _, name = key.partition(".")
    (tmp_path / "old.toml").write_text(f"[{section}]\n{name} = 1\n")
    for load in (lambda: Config.load(None, [f"{key}=1"]), lambda: Config.load(tmp_path / "old.toml")):
        with pytest.raises(ConfigError, match=f"^The setting {re.escape(key)} was removed: .*\\.$"):
            load()


@settings(max_examples=30)
@given(
    st.text(min_size=1).filter(lambda text: not text.startswith((".", "/", "~"))),
    st.lists(st.text(min_size=1), max_size=3),
    st.floats(0, 100),
)
def test_toml_there_and_back(model: str, stop: list[str], temperature: float) -> None:
    config = replace(
        Config(),
        cloud=PartyConfig(model=model, num_documents=8),
        sampling=SamplingParams(stop=tuple(stop), temperature=temperature),
    )
    assert replace_settings(Config(), tomllib.loads(config.to_toml())) == config


RANGE = "{} must be {} (got {}); the default is {}."
POLICIES = "best, last_accepted, double_dqn, or MODULE:FUNCTION of your own"

WRONG = [
    ("sampling.temprature=1", "'sampling.temprature' is not a setting; the nearest is 'sampling.temperature'."),
    ("temperature=1", "'temperature' is not a setting; the nearest is 'sampling.temperature'."),
    ("devise.model=x", "'devise.model' is not a setting; the nearest is 'device.model'."),
    ("nonsense", "Settings have the form section.name=value, but 'nonsense' has no equals sign; add it."),
    *(
        (f"{key}={value}", RANGE.format(key, expected, shown, default))
        for key, value, expected, shown, default in (
            ("sampling.temperature", "-1", "greater than or equal to 0", "-1", "0.0"),
            ("sampling.temperature", "hot", "a valid number", "'hot'", "0.0"),
            ("sampling.temperature", "nan", "a finite number", "nan", "0.0"),
            ("sampling.temperature", "inf", "a finite number", "inf", "0.0"),
            ("sampling.temperature", "true", "a valid number", "True", "0.0"),
            ("sampling.top_k", "1.0", "a valid integer", "1.0", "0"),
            ("sampling.stop", "[1]", "a valid string", "1", "[]"),
            ("link.port", "65536", "less than or equal to 65535", "65536", "0"),
            ("link.allow_plain", "1", "a valid boolean", "1", "false"),
            ("device.num_threads", "true", "a valid integer", "True", "1"),
            ("decoding.mode", "dula", "'dual', 'speculative' or 'federated'", "'dula'", '"dual"'),
            ("decoding.placement", "mirorr", f"device, cloud, greedy, mirror, {POLICIES}", "'mirorr'", '"mirror"'),
            ("decoding.length_policy", "bset", f"fixed, {POLICIES}", "'bset'", '"fixed"'),
            ("codec.name", "own_codecs:",
             "auto, top_p, top_k, k_sqs, c_sqs, lattice, or MODULE:FUNCTION of your own", "'own_codecs:'", '"auto"'),
            ("codec.parameters", "{k = [1]}",
             "a valid boolean or a valid integer or a valid number or a valid string", "[1]", "{}"),
            ("decoding.patience_s", "0", "greater than 0", "0", "inf"),
            ("decoding.patience_s", "nan", "greater than 0", "nan", "inf"),
            ("cloud.template", "chatt", "auto, chat, plain, or a path such as ./template.json", "'chatt'", '"auto"'),
        )
    ),
    ("device.model=", "device.model must have at least 1 character (got ''); the default is \"auto\"."),
    ("sampling.stop=['a', '']", "sampling.stop must have at least 1 character (got ''); the default is []."),
    *(
        (f"codec.parameters={{depth = {depth}}}",
         'The parameter depth of codec.name = "auto" must be a whole number of at least 1 and of at most 1024, but '
         f"it is {shown}; the default is 8.")
        for depth, shown in (("0", "0"), ("1.5", "1.5"), ("true", "True"), ("1025", "1025"))
    ),
    ("scheduler.parameters={share = 5}",
     "scheduler.parameters is for a policy of your own, but decoding.placement is 'mirror', "
     "decoding.length_policy is 'fixed' and the table holds share; remove it."),
]  # fmt: skip


@pytest.mark.parametrize(("override", "sentence"), WRONG, ids=[override for override, _ in WRONG])
def test_a_wrong_override_is_one_sentence(override: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(sentence)}$"):
        Config.load(None, [override])


@pytest.mark.parametrize(
    ("mode", "placement"),
    [("speculative", "mirror"), ("federated", "mirror"), ("dual", "cloud"), ("dual", "own_policies:make")],
)
def test_patience_needs_the_device_to_decide(mode: str, placement: str) -> None:
    settings = f"decoding.mode={mode}", f"decoding.placement={placement}", "decoding.patience_s=0.2"
    with pytest.raises(ConfigError) as caught:
        Config.load(None, settings)
    assert str(caught.value) == (
        f'With decoding.patience_s (got 0.2) the device decides every step, but decoding.mode is "{mode}" and '
        f'decoding.placement "{placement}"; set them to "dual" and "device".'
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[samplng]", "'samplng' is not a setting"),
        ("sampling = 3", "'sampling' is no section but has the value 3"),
        ("[sampling\n", "is not valid TOML .*line 1.*; correct that line"),
        ("[sampling]\nmax_new_tokens = 2.5", r"sampling.max_new_tokens must be a valid integer \(got 2.5\)"),
        ("[device]\nindex = 3", r"device.index must be a valid string \(got 3\)"),
        (
            "[codec.parameters]\ndepth = '5'",
            "a whole number of at least 1 and of at most 1024, but it is '5'",
        ),
    ],
)
def test_a_wrong_file_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        Config.load(write(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_each_party_is_told_its_own_paths_alone() -> None:
    config = Config.load(None, ["device.index=/home/ada/index", "cloud.model=./public"])
    assert "ada" not in config.seen_by(Party.CLOUD).to_json()
    assert config.seen_by(Party.CLOUD).cloud == config.cloud
    assert "public" not in config.seen_by(Party.DEVICE).to_json()
    assert config.seen_by(Party.DEVICE).device == config.device


def test_no_message_shows_pydantic() -> None:
    for make in (
        lambda: Config(device=3),  # type: ignore[arg-type]
        lambda: Config(devise=PartyConfig()),  # type: ignore[call-arg]
        lambda: Config(device=SamplingParams()),  # type: ignore[arg-type]
        lambda: Config.from_json('{"generation": {}}'),
        lambda: Config.from_json('{"device": {"port": 3}}'),
    ):
        with pytest.raises(ConfigError) as caught:
            make()
        assert "\n" not in str(caught.value)
        assert "pydantic" not in str(caught.value).lower()
        assert caught.value.__suppress_context__ or caught.value.__context__ is None


# ---- templates and local models --------------------------------------------------------------------------------


def test_paths_of_models_and_templates_count_from_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    (tmp_path / "models" / "small").mkdir(parents=True)
    (tmp_path / "models" / "small" / "config.json").touch()
    file = tmp_path / "tandem.toml"
    file.write_text(
        '[device]\nmodel = "models/small"\ntemplate = "chat.jinja"\n'
        '[cloud]\nmodel = "./models/large"\ntemplate = "~/chat.jinja"\n'
    )
    config = Config.load(file)
    device, cloud = config.device, config.cloud
    assert (device.model, device.template) == (f"{tmp_path}/models/small", f"{tmp_path}/chat.jinja")
    assert (cloud.model, cloud.template) == (f"{tmp_path}/models/large", "/home/somebody/chat.jinja")
    monkeypatch.chdir(tmp_path)
    config = Config.load(None, ["device.model=models/small", "cloud.model=org/small", "cloud.template=plain"])
    assert config.device.model == f"{tmp_path}/models/small"
    assert (config.cloud.model, config.cloud.template) == ("org/small", "plain")


def test_code_of_ones_own_and_its_parameters_survive_a_round_trip(tmp_path: Path) -> None:
    file = tmp_path / "tandem.toml"
    file.write_text(
        '[codec]\nname = "own.codecs:top_k"\n[codec.parameters]\nk = 4\n"a b" = "x"\n'
        '[decoding]\nplacement = "own.policies:Stay"\n[scheduler]\nparameters = {patience = 2.5}\n'
    )
    config = Config.load(file)
    assert (config.codec.name, config.codec.parameters) == ("own.codecs:top_k", {"k": 4, "a b": "x"})
    assert config.scheduler.parameters == {"patience": 2.5}
    assert Config.from_json(config.to_json()) == config
    file.write_text(config.to_toml())
    assert Config.load(file) == config
    overrides = ["codec.name=own.codecs:top_k", 'codec.parameters={k = 4, "a b" = "x"}']
    assert Config.load(None, overrides).codec == config.codec


@pytest.mark.parametrize(
    ("overrides", "on_ray", "runtime"),
    [
        ([], False, "inline"),
        ([], True, "ray"),
        (["cluster.runtime=ray"], False, "ray"),
        (["cluster.runtime=inline"], True, "inline"),
    ],
)
def test_parties_that_are_started_run_in_this_process_unless_only_ray_can(
    overrides: list[str], on_ray: bool, runtime: str
) -> None:
    assert Config.load(None, overrides).with_runtime(on_ray=on_ray).cluster.runtime == runtime


@pytest.mark.parametrize(
    ("models", "documents", "question"),
    [
        (("bundled", "bundled"), (4, 16), 0.0),
        (("smollm2", "smollm2"), (2, 2), 1.0),
        (("bundled", "org/m"), (4, 2), 1.0),
    ],
)
def test_what_is_left_open_follows_from_the_models(
    models: tuple[str, str], documents: tuple[int, int], question: float
) -> None:
    config = Config.load(None, [f"device.model={models[0]}", f"cloud.model={models[1]}"])
    assert (config.device.num_documents, config.cloud.num_documents) == documents
    assert config.weights.question == question
    given = Config.load(None, ["cloud.num_documents=3", "weights.question=0.5"])
    assert (given.cloud.num_documents, given.weights.question) == (3, 0.5)


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


@pytest.mark.parametrize(
    ("embedder", "scorer", "scale"),
    [("auto", "embedder", 10.0), ("multilingual", "embedder", 40.0), ("multilingual", "a/reranker", 1.0)],
)
def test_how_much_a_score_counts(embedder: str, scorer: str, scale: float) -> None:
    values = {"retrieval": {"embedder": embedder}, "weights": {"scorer": scorer}}
    assert replace_settings(Config(), values).score_scale == scale
