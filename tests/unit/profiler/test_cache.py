"""Profiles on disk: loaded for exactly the same settings, and never when damaged."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tandem.config.schema import PartyConfig
from tandem.corpora import WEIGHTS
from tandem.errors import TandemError
from tandem.profiler import profiles as cache
from tandem.profiler.profiles import OfflineProfile

PARTY = PartyConfig().with_names()
PROFILE = OfflineProfile(prompt_tokens=9, rows=4, runs=3, lengths=(10, 11, 12), seconds=(0.5, 0.625, 0.7))


def saved(folder: Path, party: PartyConfig = PARTY) -> Path:
    return cache.save(cache.stored(cache.profile_key(party), party.model, PROFILE), folder)


def refused(folder: Path, party: PartyConfig = PARTY) -> str:
    """The one sentence for a file that is not used."""
    warnings: list[str] = []
    assert cache.load(cache.profile_key(party), folder, warnings.append) is None
    assert len(warnings) == 1
    assert warnings[0].endswith("; measure again.")
    return warnings[0]


def changed(path: Path, **changes: Any) -> None:
    """Replaces entries of a file; a dotted name goes one level down."""
    value = json.loads(path.read_text())
    for name, new in changes.items():
        section, _, entry = name.partition("__")
        if entry:
            value[section][entry] = new
        else:
            value[section] = new
    path.write_text(json.dumps(value))


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = saved(tmp_path)
    assert path == cache.profile_path(cache.profile_key(PARTY), tmp_path)
    assert path.parent == tmp_path / "profiles"
    found = cache.load(cache.profile_key(PARTY), tmp_path, pytest.fail)
    assert found is not None
    assert found.profile == PROFILE
    assert (found.model, found.key) == ("bundled", cache.profile_key(PARTY))
    assert set(found.versions) == {"tandem-rag", "torch", "transformers"}
    assert os.listdir(path.parent) == [path.name]
    assert cache.cached_line(PARTY, tmp_path, pytest.fail) == list(PROFILE.line.to_tuple())


def test_a_model_is_known_by_its_files_and_not_by_its_place(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(WEIGHTS, tmp_path / "copy"))
    assert cache.model_fingerprint(str(copy)) == cache.model_fingerprint(str(WEIGHTS))
    with (copy / "model.safetensors").open("ab") as file:
        file.write(b"more")
    longer = cache.model_fingerprint(str(copy))
    (copy / "config.json").write_text("{}")
    names = [str(WEIGHTS), str(tmp_path / "nothing"), "somebody/a-model-that-is-not-here"]
    prints = {longer, cache.model_fingerprint(str(copy)), *map(cache.model_fingerprint, names)}
    assert len(prints) == 5


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"format": 2}, "format 1"),
        ({"key__num_threads": 7}, "other settings"),
        ({"key": None}, "key: "),
        ({"profile__seconds": [0.5, float("nan"), 0.7]}, "got nan"),
        ({"profile__seconds": [0.5, "0.6", 0.7]}, "profile.seconds.1: Input should be a valid number"),
        ({"profile__lengths": [10, 10.5, 11]}, "profile.lengths.1: Input should be a valid integer"),
        ({"profile__runs": True}, "profile.runs: Input should be a valid integer"),
        ({"profile": {}}, "prompt_tokens"),
        ({"profile": None}, "profile: "),
        ({"versions": 3}, "versions: "),
    ],
)
def test_a_wrong_file_is_not_used(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    changed(saved(tmp_path), **changes)
    assert reason in refused(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000])
def test_a_damaged_file_is_not_used(tmp_path: Path, content: bytes) -> None:
    saved(tmp_path).write_bytes(content)
    assert "was ignored because it is damaged or of another kind" in refused(tmp_path)


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path)
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(
        TandemError, match=r"cannot be written \(No space left on device\); set XDG_CACHE_HOME"
    ):
        saved(tmp_path)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]
