"""`tandem doctor` on two models: refused pairs exit with 1 and say where they differ, other differences are notes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders

from tandem.cli import main
from tandem.cli.doctor import SAME_VOCABULARY, Check, ModelFacts, compare, load_facts, prompts
from tandem.config.schema import Config
from tandem.engine.tokenizer import find_difference
from tests import chat_model

NAMES = ("device", "cloud")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model.build(tmp_path_factory.mktemp("chat") / "model")


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def checks(device: Path | str, cloud: Path | str, *settings: str) -> dict[str, Check]:
    config = Config.load(None, [f"device.model={device}", f"cloud.model={cloud}", *settings])
    return {check.name: check for check in prompts(config)}


def edit(file: Path, change: Callable[[dict[str, object]], object]) -> None:
    content = json.loads(file.read_text("utf-8"))
    change(content)
    file.write_text(json.dumps(content), "utf-8")


def test_one_model_on_both_sides(folder: Path) -> None:
    found = checks(folder, folder)
    assert [check.status for check in found.values()] == ["ok"] * 5
    assert found["device prompt"].found == (
        "Qwen2 tokenizer, 1,024 tokens; context of 2,048 tokens; template: chat"
    )
    assert found["vocabulary"].found == "the same on both sides"


def test_another_vocabulary_is_refused_and_named(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    vocabulary = checks(folder, "bundled")["vocabulary"]
    assert vocabulary.status == "missing"
    assert vocabulary.found.startswith(
        "device: Qwen2 tokenizer, 1,024 tokens; cloud: BPE tokenizer, 1,636 tokens: they differ at id 0 "
        "('<|endoftext|>' and "
    )
    assert vocabulary.remedy == SAME_VOCABULARY
    assert main(["doctor", "--set", f"device.model={folder}"]) == 1
    assert "they differ at id 0" in capsys.readouterr().out
    assert main(["doctor", "--set", f"device.model={folder}", "--set", f"cloud.model={folder}"]) == 0


def test_other_templates_and_contexts_are_notes(folder: Path, copied: Path) -> None:
    edit(copied / "config.json", lambda config: config.update(max_position_embeddings=512))
    found = checks(folder, copied, "cloud.template=plain")
    assert found["vocabulary"].status == "ok"
    assert found["templates"].status == "weak"
    assert found["templates"].found == (
        "device: chat; cloud: plain text: the models are led to answers of different forms"
    )
    assert found["contexts"].status == "ok"
    assert found["contexts"].found == (
        "device: 2,048 tokens; cloud: 512 tokens: a question and its answer must fit 512 tokens"
    )


def test_a_template_that_cannot_be_used(folder: Path, copied: Path) -> None:
    (copied / "chat_template.jinja").write_text("{% for message in messages %}")
    found = checks(folder, copied)
    assert "vocabulary" not in found
    assert found["cloud prompt"].status == "missing"
    assert found["cloud prompt"].found.startswith(
        f"The chat template of {copied} cannot be used: Unexpected end of template"
    )
    assert found["cloud prompt"].found.endswith(
        'set template to "plain", or to a file with a template of your own.'
    )
    (copied / "template.json").write_text("{")
    assert checks(folder, copied)["cloud prompt"].found.endswith("; correct or delete it.")


def test_a_tokenizer_that_is_damaged(folder: Path, copied: Path) -> None:
    (copied / "tokenizer.json").write_text("{}")
    check = checks(copied, folder)["device prompt"]
    assert check.status == "missing"
    assert "\n" not in check.found + check.remedy


def test_nothing_is_downloaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("it asked a server"))
    check = checks("nobody/no-such-model", folder)["device prompt"]
    assert check.status == "missing"
    assert check.found.startswith("The model 'nobody/no-such-model' is not in the hub's cache")


# ---- differences of tokenizers ---------------------------------------------------------------------------------


def changed(tokenizer: Tokenizer, change: Callable[[Tokenizer], object]) -> Tokenizer:
    copy: Tokenizer = Tokenizer.from_str(tokenizer.to_str())
    change(copy)
    return copy


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return load_facts(Config.load(None, [f"device.model={folder}"]).device).tokenizer


def test_the_same(tokenizer: Tokenizer) -> None:
    assert find_difference(tokenizer, changed(tokenizer, lambda copy: None), NAMES) is None


def test_more_tokens(tokenizer: Tokenizer) -> None:
    """A few at the end are left out by both; many are another vocabulary."""
    few = changed(tokenizer, lambda copy: copy.add_tokens(["<new>", "<newer>"]))
    many = changed(tokenizer, lambda copy: copy.add_tokens([f"<new {number}>" for number in range(64)]))
    for pair in ((few, tokenizer), (tokenizer, few)):
        assert find_difference(*pair, NAMES) is None
    assert find_difference(many, tokenizer, NAMES) == "only the device's has id 1024 ('<new 0>') and 63 more"
    facts = [ModelFacts(each, "", "chat", None) for each in (tokenizer, few)]
    assert next(compare(*facts)).found == (
        "only the cloud's has id 1024 ('<new>') and 1 more; answers are of the tokens that both have"
    )


def test_other_tokens(tokenizer: Tokenizer) -> None:
    one = changed(tokenizer, lambda copy: copy.add_tokens(["<a>", "<b>"]))
    two = changed(tokenizer, lambda copy: copy.add_tokens(["<c>", "<d>"]))
    assert find_difference(one, two, NAMES) == "they differ at id 1024 ('<a>' and '<c>') and at 1 other ids"


def test_special_tokens(tokenizer: Tokenizer) -> None:
    one, two = (
        changed(
            tokenizer, lambda copy, special=special: copy.add_tokens([AddedToken("<x>", special=special)])
        )  # type: ignore[misc]
        for special in (False, True)
    )
    assert find_difference(one, two, NAMES) == "id 1024 ('<x>') is a special token for the cloud alone"


def test_decoders(tokenizer: Tokenizer) -> None:
    other = changed(tokenizer, lambda copy: setattr(copy, "decoder", decoders.Fuse()))
    assert (
        find_difference(tokenizer, other, NAMES)
        == "they turn tokens into text differently (ByteLevel and Fuse)"
    )
