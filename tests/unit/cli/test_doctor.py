"""`tandem doctor`: each check on machines that are well and machines that are not."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders

from tandem import corpora
from tandem.cli import doctor
from tandem.cli.doctor import Check
from tandem.config.schema import Config, PartyConfig
from tandem.engine.tokenizer import find_difference
from tandem.topology import PARTIES, Party
from tests import chat_model

from .conftest import Run


def status(check: Check) -> str:
    """What was found says the remedy, or there is one beside it, unless all is well."""
    assert not check.remedy if check.status == "ok" else check.remedy or check.found.endswith(".")
    return check.status


@pytest.mark.parametrize(
    ("check", "wanted"),
    [
        (lambda _: doctor.python((3, 10, 9)), "missing"),
        (lambda _: doctor.python((3, 11, 0)), "ok"),
        (lambda _: doctor.cores(1), "weak"),
        (lambda _: doctor.cores(2), "ok"),
        (lambda _: doctor.memory(2 * doctor.GIB), "weak"),
        (lambda _: doctor.memory(4 * doctor.GIB), "ok"),
        (lambda _: doctor.open_files(256), "missing"),
        (lambda _: doctor.open_files(1024), "weak"),
        (lambda _: doctor.open_files(65536), "ok"),
        (lambda _: doctor.ports(), "ok"),
        (lambda _: doctor.ports("203.0.113.1"), "missing"),  # an address that is no machine's
        (lambda folder: doctor.shared_memory(folder / "none"), "weak"),
        (lambda _: doctor.temporary_folder(Path("/") / ("x" * 50)), "missing"),
        (lambda folder: doctor.writable("folder", folder / "not" / "yet"), "ok"),
        (lambda folder: doctor.writable("folder", folder / "file" / "below"), "missing"),
    ],
)
def test_the_machine(check: Callable[[Path], Check], wanted: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    before = set(tmp_path.rglob("*"))
    assert status(check(tmp_path)) == wanted
    assert set(tmp_path.rglob("*")) == before, "nothing is left behind"


def write_model(folder: Path) -> Path:
    folder.mkdir()
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        (folder / name).write_text(name)
    digest = sha256(b"model.safetensors").hexdigest()
    (folder / "checksum.json").write_text(json.dumps({"model.safetensors": digest}))
    return folder


def test_the_bundled_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> str:
        return status(doctor.language_model(Party.DEVICE, PartyConfig(model="bundled")))

    monkeypatch.setattr(corpora, "WEIGHTS", tmp_path / "weights")
    assert check() == "missing"
    folder = write_model(tmp_path / "weights")
    assert check() == "ok"
    (folder / "model.safetensors").write_text("damaged")
    assert check() == "missing"
    (folder / "checksum.json").write_text("[]")
    assert check() == "missing"


def test_exit_code_and_output(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    found = [Check("python", "ok", "3.11.7"), Check("ports", "missing", "none", "allow them")]
    monkeypatch.setattr(doctor, "all_checks", lambda config: found)
    shown = run("doctor")
    assert (shown.code, shown.out.splitlines()[:3]) == (
        1,
        [
            "ok       python           3.11.7",
            "missing  ports            none",
            "                          remedy: allow them",
        ],
    )
    shown = run("doctor", "--json")
    assert (shown.code, json.loads(shown.out)) == (
        1,
        {"is_well": False, "checks": [asdict(each) for each in found]},
    )
    found.pop()
    assert run("doctor").code == 0


def test_all_of_it_runs_here() -> None:
    names = [check.name for check in doctor.all_checks(Config())]
    assert len(names) == len(set(names))
    assert {"python", "packages", "ports"} <= set(names)


def test_the_engine_is_tried_where_its_model_is_small(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = Config()
    device, cloud = doctor.engines(config, PARTIES)
    assert (device.name, cloud.name) == ("device engine", "cloud engine")
    assert device.found == cloud.found, "tried once"
    what = (
        r"PyTorch [\w.+]+, float32, \d+ ms per token; computes many queries in one pass \(self-check passed\)"
    )
    assert re.fullmatch(what, device.found)
    monkeypatch.setattr("tandem.plugins.torch.runner.find_fault", lambda *_: "its logits are off by 2")
    slow = doctor.engine("device engine", config.device)
    assert status(slow) == "weak"
    assert " computes one token of one query at a time, because its logits are off by 2 (on " in slow.found
    monkeypatch.setattr(doctor, "MAX_WEIGHT_BYTES", 1)
    large = doctor.engine("device engine", config.device)
    assert status(large) == "ok"
    assert large.found.startswith("not tried here, since its weights are 0.0 GiB; `tandem status` shows it")
    away = doctor.engine("device engine", replace(config.device, model="someone/model"))
    assert away.found.startswith("not tried here, since its weights are in the hub's cache; ")
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(doctor, "MAX_WEIGHT_BYTES", 1 << 30)
    assert status(doctor.engine("device engine", replace(config.device, model=str(tmp_path)))) == "missing"


# ---- models of both parties ------------------------------------------------------------------------------------


NAMES = ("device", "cloud")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model.build(tmp_path_factory.mktemp("chat") / "model")


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def checks(device: Path | str, cloud: Path | str, *settings: str) -> dict[str, Check]:
    config = Config.load(None, [f"device.model={device}", f"cloud.model={cloud}", *settings])
    return {check.name: check for check in doctor.prompts(config)}


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


def test_another_vocabulary_is_refused_and_named(folder: Path, run: Run) -> None:
    vocabulary = checks(folder, "bundled")["vocabulary"]
    assert vocabulary.status == "missing"
    assert vocabulary.found.startswith(
        "device: Qwen2 tokenizer, 1,024 tokens; cloud: BPE tokenizer, 1,636 tokens: they differ at id 0 "
        "('<|endoftext|>' and "
    )
    assert vocabulary.remedy == doctor.SAME_VOCABULARY
    shown = run("doctor", "--set", f"device.model={folder}")
    assert shown.code == 1
    assert "they differ at id 0" in shown.out
    assert run("doctor", "--model", str(folder)).code == 0


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


def test_nothing_is_downloaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("it asked a server"))
    check = checks("nobody/no-such-model", folder)["device prompt"]
    assert check.status == "missing"
    assert check.found.startswith("The model 'nobody/no-such-model' is not in the hub's cache")


# ---- differences of tokenizers ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return doctor.load_facts(Config.load(None, [f"device.model={folder}"]).device).tokenizer


Change = Callable[[Tokenizer], object]


def changed(tokenizer: Tokenizer, change: Change) -> Tokenizer:
    copy: Tokenizer = Tokenizer.from_str(tokenizer.to_str())
    change(copy)
    return copy


def adding(*tokens: str | AddedToken) -> Change:
    return lambda copy: copy.add_tokens(list(tokens))


FEW, MANY = adding("<new>", "<newer>"), adding(*(f"<new {number}>" for number in range(64)))


@pytest.mark.parametrize(
    ("one", "two", "difference"),
    [
        (adding(), adding(), None),
        (FEW, adding(), None),  # a few at the end are left out by both; many are another vocabulary
        (adding(), FEW, None),
        (MANY, adding(), "only the device's has id 1024 ('<new 0>') and 63 more"),
        (
            adding("<a>", "<b>"),
            adding("<c>", "<d>"),
            "they differ at id 1024 ('<a>' and '<c>') and at 1 other ids",
        ),
        (
            adding(AddedToken("<x>", special=False)),
            adding(AddedToken("<x>", special=True)),
            "id 1024 ('<x>') is a special token for the cloud alone",
        ),
        (
            adding(),
            lambda copy: setattr(copy, "decoder", decoders.Fuse()),
            "they turn tokens into text differently (ByteLevel and Fuse)",
        ),
    ],
)
def test_differences(tokenizer: Tokenizer, one: Change, two: Change, difference: str | None) -> None:
    assert find_difference(changed(tokenizer, one), changed(tokenizer, two), NAMES) == difference


def test_tokens_that_only_one_side_has_are_named(tokenizer: Tokenizer) -> None:
    facts = [doctor.ModelFacts(each, "", "chat", None) for each in (tokenizer, changed(tokenizer, FEW))]
    assert next(doctor.compare(*facts)).found == (
        "only the cloud's has id 1024 ('<new>') and 1 more; answers are of the tokens that both have"
    )
