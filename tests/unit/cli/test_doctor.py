"""`tandem doctor`: each check on machines that are well and machines that are not."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest
from tokenizers import AddedToken, Tokenizer, decoders

from tandem import corpora
from tandem.config.schema import Config, PartyConfig
from tandem.engine.tokenizer import find_difference
from tandem.errors import install_line
from tandem.plugins.gguf.header import check
from tandem.plugins.setup import doctor
from tandem.plugins.setup.doctor import Check
from tandem.plugins.torch import conversion
from tandem.retrieval import embedding
from tandem.topology import PARTIES, Party
from tests import chat_model
from tests.tiny_gguf import write_gguf

from .conftest import Run


def look(looks: Callable[[], str]) -> Check:
    """What was found says the remedy, or there is one beside it, unless all is well."""
    found = doctor.check("it", looks)
    assert not found.remedy if found.status == "ok" else found.remedy or found.finding.endswith(".")
    return found


def status(looks: Callable[[], str]) -> str:
    return look(looks).status


def model(name: object) -> str:
    return doctor.language_model(PartyConfig(model=str(name)))


def index(where: object, **settings: int) -> str:
    return doctor.index(Party.DEVICE, PartyConfig(index=str(where), **settings))  # type: ignore[arg-type]


def caches(where: object, *settings: str) -> str:
    return doctor.stored_caches(Party.CLOUD, Config.load(None, (f"cloud.index={where}", *settings)))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of things that are whole and things that are not; the hub's cache holds org/cached alone."""
    monkeypatch.setattr(doctor, "is_cached", lambda name, file: name == "org/cached")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(embedding, "offline_folder", lambda: None)
    shutil.copytree(corpora.WEIGHTS, tmp_path / "model")
    shutil.copytree(corpora.WEIGHTS, tmp_path / "half", ignore=shutil.ignore_patterns("model.safetensors"))
    (tmp_path / "folder").mkdir()
    for name in ("kv", "modules.json"):
        (tmp_path / "folder" / name).touch()
    (tmp_path / "folder" / "tandem-index.sqlite").write_text("{}" * 100)
    return tmp_path


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        (lambda place: doctor.writable(place / "not" / "yet"), "ok"),
        (lambda place: doctor.writable(place / "folder" / "kv" / "below"), "missing"),
        (lambda place: model(place / "model"), "ok"),
        (lambda place: model(place / "half"), "missing"),
        (lambda place: model(place / "none"), "missing"),
        (lambda place: model("org/cached"), "ok"),
        (lambda place: model("org/other"), "weak"),
        (lambda place: index(place, num_documents=0), "ok"),
        (lambda place: index(place), "missing"),
        (lambda place: index(place / "folder"), "missing"),
        (lambda place: doctor.embedder("all-MiniLM-L6-v2"), "weak"),
        (lambda place: doctor.embedder("offline"), "missing"),
        (lambda place: doctor.embedder(str(place / "folder")), "ok"),
        (lambda place: caches(place), "ok"),
        (lambda place: caches(place / "folder"), "weak"),
        (lambda place: caches(place / "folder", "cloud.kv_store=memory"), "ok"),
    ],
)
def test_a_look_tells_what_is_well_and_leaves_nothing_behind(
    looks: Callable[[Path], str], expected: str, place: Path
) -> None:
    before = set(place.rglob("*"))
    assert status(lambda: looks(place)) == expected
    assert set(place.rglob("*")) == before


@pytest.mark.parametrize("amount", [*doctor.AMOUNTS, *doctor.FOR_RAY], ids=lambda amount: amount.name)
def test_amounts(amount: doctor.Amount) -> None:
    assert amount.read() >= 0
    assert status(amount._replace(read=lambda: amount.least).look) == "ok"
    assert status(amount._replace(read=lambda: amount.least - 0.1).look) == "weak"


def test_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    requirements = ["numpy>=1", "pytest<1; extra == 'test'", "no-such-engine-of-tandem; extra == 'torch'"]
    monkeypatch.setattr(metadata, "requires", lambda name: requirements)
    assert doctor.packages().startswith("all 1, with Python 3.")
    requirements += ["no-such-package-of-tandem", "packaging<1; extra == 'ray'"]
    found = look(doctor.packages)
    assert found.status == "missing"
    assert found.finding.startswith("no-such-package-of-tandem is not installed; packaging is ")


def test_a_gguf_file_without_what_computes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line of the list, not the end of it."""
    pytest.importorskip("gguf", reason="the package gguf (extra torch) is not installed")
    config = PartyConfig(model=str(write_gguf(tmp_path / "tiny.gguf")), engine="torch")
    assert status(lambda: doctor.language_model(config)) == "ok"
    monkeypatch.setattr(conversion, "find_spec", lambda package: None)
    found = look(lambda: doctor.language_model(config))
    assert found.status == "missing"
    assert found.finding.endswith(f"of which some are not installed; run `{install_line('torch')}`.")


@pytest.mark.parametrize(
    ("num_parameters", "judgement"),
    [
        (134_515_008, "; 0.13 B parameters, small: it finds, but often misreads"),
        (630_167_424, "; 0.63 B parameters, which read most of what is found"),
    ],
)
def test_a_model_is_judged_by_its_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_parameters: int, judgement: str
) -> None:
    path = str(write_gguf(tmp_path / "model.gguf"))
    assert model(path).endswith(" B parameters, small: it finds, but often misreads")
    header = replace(check(Path(path)), num_parameters=num_parameters)
    monkeypatch.setattr(doctor, "check_file", lambda _: header)
    assert model(path).endswith(judgement)
    assert "B parameters" not in model("bundled"), "its name says that it is a toy"


def test_hub_names_are_looked_up_without_a_server() -> None:
    assert doctor.is_cached("no-such-organisation/no-such-model", "config.json") is False
    assert doctor.is_cached("../..//", "config.json") is False


def test_the_bundled_model_with_other_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "check_models", lambda config: ())
    *_, found = doctor.all_checks(Config.load(None, ["device.index=/mine"]))
    assert found == Check(
        "bundled model",
        "weak",
        "The bundled model is a demonstration that can read the bundled documents only, but device.index names others",
        "set device.model and cloud.model to a model of your own",
    )


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        *((where, "ok") for where in ("json:loads", "json.decoder:Shelf", "shelf:store")),
        ("nowhere.shelf:store", "weak"),
        *((where, "missing") for where in ("", "json", "json:", ":loads", "json:loads:x")),
    ],
)
def test_what_langchain_brings_is_opened_by_the_nodes(
    where: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "shelf", ModuleType("shelf"))
    config = Config.load(None, [f"device.index=langchain:{where}"])
    for looks in (
        lambda: doctor.index(Party.DEVICE, config.device),
        lambda: doctor.embedder(f"langchain:{where}"),
    ):
        assert status(looks) == wanted


def test_exit_code_and_output(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    found = [Check("python", "ok", "3.11.7"), Check("ports", "missing", "none", "allow them")]
    monkeypatch.setattr(doctor, "all_checks", lambda config: found)
    shown = run("doctor", code=1)
    assert shown.out.splitlines()[:3] == [
        "ok       python           3.11.7",
        "missing  ports            none",
        "                          remedy: allow them",
    ]
    shown = run("doctor", "--json", code=1)
    assert json.loads(shown.out) == {"is_well": False, "checks": [asdict(each) for each in found]}
    found.pop()
    assert run("doctor").code == 0


def test_all_of_it_runs_here() -> None:
    names = [check.name for check in doctor.all_checks(Config.load())]
    assert len(names) == len(set(names))
    assert {"packages", "cores", "vocabulary"} <= set(names)
    assert "bundled model" not in names


def test_a_model_is_as_large_as_its_engine_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp computes a file as it is, PyTorch in the precision of the settings."""
    asked = list[str]()
    monkeypatch.setattr(doctor, "count_bytes", lambda path, dtype: asked.append(dtype))
    for engine in ("llama", "torch"):
        doctor.engine(replace(Config().device, model="smollm2", engine=engine))
    assert asked == ["", "float32"]


def test_the_engine_is_tried_where_its_model_is_small(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = Config()
    found = {check.name: check for check in doctor.check_models(config)}
    assert found["device engine"].finding == found["cloud engine"].finding
    what = r"PyTorch [\w.+]+, float32; computes many queries in one pass \(self-check passed\)"
    assert re.fullmatch(what, found["device engine"].finding)
    monkeypatch.setattr("tandem.plugins.torch.runner.find_fault", lambda *_: "its logits are off by 2")
    slow = look(lambda: doctor.engine(config.device))
    assert slow.status == "weak"
    assert " computes one token of one query at a time, because its logits are off by 2 (on " in slow.finding
    monkeypatch.setattr(doctor, "MAX_WEIGHT_BYTES", 1)
    large = doctor.engine(config.device)
    assert large.startswith("not tried here, since its weights are 0.0 GiB; `tandem status` shows it")
    away = doctor.engine(replace(config.device, model="someone/model"))
    assert away.startswith("not tried here, since its weights are in the hub's cache; ")


@pytest.mark.parametrize(
    ("options", "models"),
    [
        (["--model", "./a"], ["a", "a"]),
        (["--device-model", "./a", "--set", "device.model=./b"], ["a", "bundled"]),
        (["--cloud-model", "./a", "--model", "./b"], ["b", "a"]),
        ([], ["bundled", "bundled"]),
    ],
)
def test_models_of_the_command_line(
    options: list[str], models: list[str], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Config] = []
    monkeypatch.setattr(doctor, "all_checks", lambda config: seen.append(config) or [])
    assert run("doctor", *options).code == 0
    assert [Path(seen[0].party(party).model).name for party in PARTIES] == models


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
    return {check.name: check for check in doctor.check_models(config)}


def test_one_model_on_both_sides(folder: Path) -> None:
    found = checks(folder, folder)
    facts = "Qwen2 tokenizer, 1,024 tokens; context of 2,048 tokens; template: chat"
    assert found["device prompt"] == Check("device prompt", "ok", facts)
    assert found["vocabulary"] == Check("vocabulary", "ok", "the same on both sides")


def test_another_vocabulary_is_named_with_what_it_costs(folder: Path, run: Run) -> None:
    vocabulary = checks(folder, "bundled")["vocabulary"]
    assert vocabulary.status == "ok"
    assert vocabulary.finding.startswith(
        "device: Qwen2 tokenizer, 1,024 tokens; cloud: BPE tokenizer, 1,636 tokens: they differ at id 0 "
        "('<|endoftext|>' and "
    )
    cost = r"answers are of 1,\d{3} pieces of text, of which both have \d{3}, and each model reads what"
    assert re.search(cost, vocabulary.finding)
    assert "they differ at id 0" in run("doctor", "--set", f"device.model={folder}").out


def test_other_templates_are_a_note(folder: Path, copied: Path) -> None:
    found = checks(folder, copied, "cloud.template=plain")
    assert found["vocabulary"].status == "ok"
    assert found["templates"].status == "weak"
    assert found["templates"].finding == (
        "device: chat; cloud: plain text: the models are led to answers of different forms"
    )


@pytest.mark.parametrize(
    ("file", "content", "name", "finding"),
    [
        (
            "chat_template.jinja",
            "{% for message in messages %}",
            "cloud prompt",
            "The chat template of .*/copy cannot be used: Unexpected end of template.*; "
            'set template to "plain", or to a file with a template of your own.',
        ),
        ("template.json", "{", "cloud model", ".*; correct or delete it."),
        ("tokenizer.json", "{}", "cloud prompt", ".*"),
    ],
)
def test_a_file_of_a_model_that_cannot_be_used(
    folder: Path, copied: Path, file: str, content: str, name: str, finding: str
) -> None:
    (copied / file).write_text(content)
    found = checks(folder, copied)
    assert "vocabulary" not in found
    assert found[name].status == "missing"
    assert re.fullmatch(finding, found[name].finding), "one line"


def test_nothing_is_downloaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("it asked a server"))
    check = checks("nobody/no-such-model", folder)["device model"]
    assert check.status == "missing"
    assert check.finding.startswith("The model 'nobody/no-such-model' is not in the hub's cache")


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
        (adding("<a>", "<b>"), adding("<c>", "<d>"), "they differ at id 1024 ('<a>' and '<c>') and at 1 other ids"),
        (adding(AddedToken("<x>", special=False)), adding(AddedToken("<x>", special=True)),
         "id 1024 ('<x>') is a special token for the cloud alone"),
        (adding(), lambda copy: setattr(copy, "decoder", decoders.Fuse()),
         "they turn tokens into text differently (ByteLevel and Fuse)"),
    ],
)  # fmt: skip
def test_differences(tokenizer: Tokenizer, one: Change, two: Change, difference: str | None) -> None:
    assert find_difference(changed(tokenizer, one), changed(tokenizer, two), NAMES) == difference


def test_tokens_that_only_one_side_has_are_named(tokenizer: Tokenizer) -> None:
    facts = [doctor.ModelFacts(each, "", "chat", None) for each in (tokenizer, changed(tokenizer, FEW))]
    assert doctor.vocabularies(*facts) == (
        "only the cloud's has id 1024 ('<new>') and 1 more; answers are of the tokens that both have"
    )
