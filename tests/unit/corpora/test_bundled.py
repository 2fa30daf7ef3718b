"""The toys and documents that come with Tandem: untampered and of one vocabulary."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from tandem.config.schema import Config
from tandem.corpora import BUNDLED, DRAFTER, WEIGHTS
from tandem.errors import ConfigError

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
