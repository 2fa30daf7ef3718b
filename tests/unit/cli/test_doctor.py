"""`tandem doctor`: each check on machines that are well and machines that are not."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest

from tandem import corpora
from tandem.cli import doctor, main
from tandem.cli.doctor import Check
from tandem.config.schema import Config, PartyConfig
from tandem.retrieval import embedding
from tandem.topology import PARTIES, Party


def status(check: Check) -> str:
    """What was found says the remedy, or there is one beside it, unless all is well."""
    assert not check.remedy if check.status == "ok" else check.remedy or check.found.endswith(".")
    return check.status


def test_the_machine() -> None:
    assert status(doctor.python((3, 10, 9))) == "missing"
    assert status(doctor.python((3, 11, 0))) == "ok"
    assert status(doctor.cores(1)) == "weak"
    assert status(doctor.cores(2)) == "ok"
    assert status(doctor.memory(2 * doctor.GIB)) == "weak"
    assert status(doctor.memory(4 * doctor.GIB)) == "ok"
    assert status(doctor.open_files(256)) == "missing"
    assert status(doctor.open_files(1024)) == "weak"
    assert status(doctor.open_files(65536)) == "ok"
    assert doctor.memory().found.endswith("GiB free")


def test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert status(doctor.shared_memory(tmp_path / "none")) == "weak"
    assert status(doctor.temporary_folder(Path("/") / ("x" * 50))) == "missing"
    assert status(doctor.writable("folder", tmp_path / "not" / "yet")) == "ok"
    assert not (tmp_path / "not").exists()
    (tmp_path / "file").touch()
    assert status(doctor.writable("folder", tmp_path / "file" / "below")) == "missing"
    monkeypatch.setattr(doctor, "MIN_SHARED_BYTES", 1 << 60)
    assert "--shm-size" in doctor.shared_memory(tmp_path).remedy


def test_ports() -> None:
    assert status(doctor.ports()) == "ok"
    assert status(doctor.ports("203.0.113.1")) == "missing"  # an address that is no machine's


def test_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    requirements = ["numpy>=1", "pytest>=1; extra == 'test'"]
    monkeypatch.setattr(metadata, "requires", lambda name: requirements)
    assert doctor.packages().found.startswith("all 1, such as torch ")
    requirements += ["no-such-package-of-tandem", "packaging<1"]
    found = doctor.packages()
    assert status(found) == "missing"
    assert found.found.startswith("no-such-package-of-tandem is not installed; packaging is ")


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


def test_other_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "is_cached", lambda name, file: name == "org/cached")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)

    def check(model: str) -> str:
        return status(doctor.language_model(Party.CLOUD, PartyConfig(model=model)))

    folder = Path(shutil.copytree(corpora.WEIGHTS, tmp_path / "model"))
    assert check(str(folder)) == "ok"
    (folder / "model.safetensors").unlink()
    assert check(str(folder)) == "missing"
    assert check(str(tmp_path / "none")) == "missing"
    assert check("org/cached") == "ok"
    assert check("org/other") == "weak"


def test_hub_names_are_looked_up_without_a_server() -> None:
    assert doctor.is_cached("no-such-organisation/no-such-model", "config.json") is False
    assert doctor.is_cached("../..//", "config.json") is False


def test_indexes(tmp_path: Path) -> None:
    def check(**settings: object) -> str:
        return status(doctor.index(Party.DEVICE, PartyConfig(**settings)))  # type: ignore[arg-type]

    assert check(num_documents=0, index=str(tmp_path)) == "ok"
    assert check(index=str(tmp_path)) == "missing"
    (tmp_path / "tandem-index.sqlite").write_text("{}" * 100)
    assert check(index=str(tmp_path)) == "missing"


def test_the_bundled_model_with_other_documents() -> None:
    found = [
        check
        for check in doctor.all_checks(Config.load(None, ["device.index=/mine"]))
        if check.name == "bundled model"
    ]
    assert found == [
        Check(
            "bundled model",
            "weak",
            "The bundled model is a demonstration that can read the bundled documents only, but device.index names "
            "others",
            "set device.model and cloud.model to a model of your own",
        )
    ]
    assert not [check for check in doctor.all_checks(Config.load()) if check.name == "bundled model"]


def test_embedders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "offline_folder", lambda: None)
    monkeypatch.setattr(doctor, "is_cached", lambda name, file: False)
    assert status(doctor.embedder(Config())) == "weak"
    assert status(doctor.embedder(Config.load(None, ["retrieval.embedder=offline"]))) == "missing"
    assert status(doctor.embedder(Config.load(None, [f"retrieval.embedder={tmp_path}"]))) == "ok"


@pytest.mark.parametrize(
    ("where", "wanted"),
    [("json:loads", "ok"), ("json.decoder:Shelf", "ok"), ("nowhere.shelf:store", "weak")]
    + [(where, "missing") for where in ("", "json", "json:", ":loads", "json:loads:x")],
)
def test_what_langchain_brings(where: str, wanted: str) -> None:
    config = Config.load(None, [f"device.index=langchain:{where}", f"retrieval.embedder=langchain:{where}"])
    for check in (doctor.index(Party.DEVICE, config.device), doctor.embedder(config)):
        assert status(check) == wanted


def test_caches(tmp_path: Path) -> None:
    def check(*named: str) -> str:
        named = (f"cloud.index={tmp_path}", *(f"cloud.{each}" for each in named))
        return status(doctor.stored_caches(Party.CLOUD, Config.load(None, named)))

    assert check("kv_max_bytes=1") == "ok"
    assert check(f"kv_max_bytes={1 << 60}") == "weak"
    assert check(f"kv_max_bytes={1 << 60}", "kv_store=memory") == "ok"
    assert not (tmp_path / "kv").exists()
    (tmp_path / "kv").touch()
    assert check("kv_max_bytes=1") == "weak"


def test_what_langchain_brings_is_left_to_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "shelf", ModuleType("shelf"))
    config = Config.load(
        None, ["device.index=langchain:shelf:store", "retrieval.embedder=langchain:shelf:words"]
    )
    for check in (doctor.index(Party.DEVICE, config.device), doctor.embedder(config)):
        assert check.status == "ok"
        assert "langchain:shelf:" in check.found


def test_exit_code_and_output(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = [Check("python", "ok", "3.11.7"), Check("ports", "missing", "none", "allow them")]
    monkeypatch.setattr("tandem.cli.doctor.all_checks", lambda config: found)
    assert main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "ok       python           3.11.7",
        "missing  ports            none",
        "                          remedy: allow them",
    ]
    assert main(["doctor", "--json"]) == 1
    value = json.loads(capsys.readouterr().out)
    assert value["is_well"] is False
    assert value["checks"][1] == {
        "name": "ports",
        "status": "missing",
        "found": "none",
        "remedy": "allow them",
    }
    found.pop()
    assert main(["doctor"]) == 0


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
    assert device.found == cloud.found == "computes many queries in one pass (self-check passed)"
    monkeypatch.setattr("tandem.engine.engine.find_fault", lambda *_: "its logits are off by 2")
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
    options: list[str], models: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Config] = []

    def keep(config: Config) -> list[Check]:
        seen.append(config)
        return []

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor, "all_checks", keep)
    assert main(["doctor", *options]) == 0
    assert [Path(seen[0].party(party).model).name for party in PARTIES] == models
