"""What is kept of documents and turns. On disk what comes out is what went in, or nothing, and a budget holds."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tandem.engine import kv as kv_disk
from tandem.engine.engine import Engine
from tandem.engine.kv import Cache, DiskStore, MemoryStore, TurnCaches
from tandem.plugins.torch.batch import FORM, to_cache
from tandem.system import paths

TOKENS = (0, 5, 6, 7)
MODEL = "m" * 32

Save = Callable[..., Path]


def entry(seed: int = 1, num_tokens: int = 4, dtype: torch.dtype = torch.float32) -> Cache:
    """Two layers, two heads of 8."""
    draw = torch.Generator().manual_seed(seed)
    keys, values = (
        [torch.randn(2, num_tokens, 8, generator=draw).to(dtype) for _ in range(2)] for _ in range(2)
    )
    return to_cache(list(zip(keys, values, strict=True)), num_tokens)


def equal(one: Cache | None, other: Cache) -> bool:
    return one is not None and all(
        a.dtype == b.dtype and torch.equal(a, b)
        for a, b in zip(one.tensors.values(), other.tensors.values(), strict=True)
    )


class Store:
    """A fresh DiskStore for every process that is played, and what was warned of."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "kv"
        self.warnings: list[str] = []

    def open(self, model: str = MODEL, max_bytes: int = 1 << 20) -> DiskStore:
        return DiskStore(self.folder, model, max_bytes, self.warnings.append, FORM)

    def files(self) -> list[Path]:
        return sorted(self.folder.glob("*/*/*"))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_round_trip_through_another_process(store: Store, dtype: torch.dtype) -> None:
    store.open().put(TOKENS, entry(dtype=dtype))
    files = store.open()
    assert equal(files.get(TOKENS), entry(dtype=dtype))
    assert equal(files.get(list(TOKENS)), entry(dtype=dtype))
    assert files.get((0, 5, 6, 8)) is None
    assert files.get(TOKENS[:3]) is None
    assert store.open("other").get(TOKENS) is None
    assert files.num_bytes == store.files()[0].stat().st_size
    assert store.warnings == []


def test_nobody_else_may_read_it(store: Store) -> None:
    old = os.umask(0)
    try:
        store.open().put(TOKENS, entry())
    finally:
        os.umask(old)
    path = store.files()[0]
    assert path.stat().st_mode & 0o777 == 0o600
    for folder in path.parents[:3]:
        assert folder.stat().st_mode & 0o777 == 0o700


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)


def cut(path: Path, end: int) -> None:
    path.write_bytes(path.read_bytes()[:end])


def no_metadata(path: Path) -> None:
    save_file(load_file(path), path)


def odd_metadata(path: Path) -> None:
    save_file(load_file(path), path, {"tandem": "[1]"})


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    "damage",
    [
        partial(cut, end=-7),
        partial(cut, end=0),
        partial(flip, place=-20),
        partial(flip, place=11),
        no_metadata,
        odd_metadata,
        a_folder,
    ],
)
def test_a_damaged_file_is_not_used_said_once_and_replaced(
    store: Store, damage: Callable[[Path], None]
) -> None:
    store.open().put(TOKENS, entry())
    damage(store.files()[0])
    files = store.open()
    assert files.get(TOKENS) is None
    assert files.get(TOKENS) is None
    assert len(store.warnings) == 1
    assert store.warnings[0].startswith(
        f"The stored cache {store.files()[0]} is damaged or of another kind ("
    )
    assert store.warnings[0].endswith(") and is not used; it is computed again.")
    assert "\n" not in store.warnings[0]
    if damage is not a_folder:
        files.put(TOKENS, entry())
        assert equal(files.get(TOKENS), entry())
        assert equal(store.open().get(TOKENS), entry())
        assert len(store.warnings) == 1


def test_damage_to_an_open_file_is_found_by_its_size(store: Store) -> None:
    files = store.open()
    files.put(TOKENS, entry())
    assert equal(files.get(TOKENS), entry())
    path = store.files()[0]
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes()[:-1])
    os.replace(copy, path)
    assert files.get(TOKENS) is None
    assert len(store.warnings) == 1


def test_mutant_without_the_checksum_damage_is_used(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_disk, "checksum", lambda cache, form: 0)
    store.open().put(TOKENS, entry())
    flip(store.files()[0], -20)
    assert not equal(store.open().get(TOKENS), entry())
    assert store.warnings == []


def test_files_of_another_model_or_prefix_that_were_copied_here(store: Store) -> None:
    store.open("other").put(TOKENS, entry())
    assert store.open().is_of_another_model()
    theirs = store.files()[0]
    ours = store.folder / MODEL / theirs.parent.name / theirs.name
    ours.parent.mkdir(parents=True)
    ours.write_bytes(theirs.read_bytes())
    files = store.open()
    assert not files.is_of_another_model()
    assert files.get(TOKENS) is None
    assert "it was made by another model" in store.warnings[0]
    files.put((0, 1), entry(2, 2))
    there = ours.parent.parent / files.name((0, 1))[:2] / f"{files.name((0, 1))}.safetensors"
    os.replace(there, ours)
    assert store.open().get(TOKENS) is None
    assert "it is no cache of this document" in store.warnings[1]


def test_a_budget_holds_with_two_writers_and_counts_what_a_killed_one_left(store: Store) -> None:
    store.open().put(TOKENS, entry())
    size = store.files()[0].stat().st_size
    (store.files()[0].parent / ".writing-left").write_bytes(b"x" * 3 * size)
    os.utime(store.files()[0].parent / ".writing-left", (1, 1))
    writers = [store.open(max_bytes=10 * size) for _ in range(2)]
    for number in range(30):
        writers[number % 2].put((number, 1, 1, 1), entry())
        assert sum(path.stat().st_size for path in store.files()) <= 11 * size
    assert not any(path.name == ".writing-left" for path in store.files())
    assert len(store.files()) >= 8


def test_a_full_disk_is_said_once_and_the_rest_goes_on(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    files = store.open()
    files.put(TOKENS, entry())

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(paths.os, "replace", full)
    files.put((0, 1, 1, 1), entry())
    files.put((0, 2, 1, 1), entry())
    assert store.warnings == [
        f"The key-value store {store.folder} cannot be written (No space left on device), so documents "
        "are computed for each question; free space, or lower kv_max_bytes."
    ]
    assert [path.suffix for path in store.files()] == [".safetensors"]  # nothing half-written stays
    assert equal(files.get(TOKENS), entry())


def test_prune_keeps_only_what_is_named(store: Store) -> None:
    store.open("old").put(TOKENS, entry())
    files = store.open()
    files.put(TOKENS, entry())
    files.put((0, 1, 1, 1), entry())
    files.prune({files.name(TOKENS)})
    assert [path.stem for path in store.files()] == [files.name(TOKENS)]
    assert files.num_bytes == store.files()[0].stat().st_size


WORKER = """
import torch
from pathlib import Path
from tandem.engine.kv import DiskStore
from tandem.plugins.torch.batch import FORM, to_cache
from tandem.system import paths

torch.set_num_threads(1)
warnings = []
files = DiskStore(Path({folder!r}), "m", 60_000, warnings.append, FORM)
found = 0
for number in range(600):
    token = (number * {step}) % 20
    value = torch.full((2, 50, 8), float(token))
    cache = files.get([token] * 50)
    if cache is None:
        files.put([token] * 50, to_cache([(value, value + 0.5)], 50))
    else:
        found += 1
        assert torch.equal(cache.tensors["0.keys"], value) and torch.equal(cache.tensors["0.values"], value + 0.5)
assert not warnings, warnings
print(found)
"""


@pytest.mark.nightly("starts processes that load the model, and kills some")
def test_several_processes_write_read_and_forget_at_once(store: Store) -> None:
    """20 prefixes of 6.7 kB in a budget of 60 kB, so that files come and go under everybody's feet."""
    scripts = [WORKER.format(folder=str(store.folder), step=step) for step in (3, 7, 11)]
    workers = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for script in scripts
    ]
    for worker in workers:
        out, err = worker.communicate(timeout=120)
        assert worker.returncode == 0, err.decode()
        assert int(out) > 0
    assert sum(path.stat().st_size for path in store.files()) <= 60_000 * 1.25


PRECOMPUTE = """
from pathlib import Path
from tandem.engine.engine import Engine
from tandem.engine.kv import DiskStore
from tandem.plugins.torch.batch import FORM
from tandem.engine.engine import precompute

engine = Engine.load({model!r}, num_threads=1)
files = DiskStore(Path({folder!r}), engine.runner.computing_fingerprint, 1 << 30, print, FORM)
print(precompute(engine, files, 120, lambda number: f"Vantelu Cor has {{number}} levels. " * 3))
"""


@pytest.mark.nightly("starts processes that load the model, and kills some")
def test_killed_while_computing_ahead_only_the_missing_are_computed(store: Store, save_model: Save) -> None:
    """kill -9 at some moment; the next run keeps all that was whole, and each is as if computed now."""
    model = str(save_model("llama-grouped"))
    script = PRECOMPUTE.format(model=model, folder=str(store.folder))
    worker = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while len(list(store.folder.glob("*/*/*.safetensors"))) < 20:
        assert worker.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.002)
    worker.send_signal(signal.SIGKILL)
    worker.communicate()
    finished = len(list(store.folder.glob("*/*/*.safetensors")))
    assert 20 <= finished < 120
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert f"(num_computed={120 - finished}, num_present={finished}, num_too_long=0" in done.stdout
    engine = Engine.load(model, num_threads=1)
    files = store.open(engine.runner.computing_fingerprint, 1 << 30)
    for number in range(0, 120, 17):
        document = f"Vantelu Cor has {number} levels. " * 3
        assert equal(files.get(engine.document_tokens(document)), engine.document_cache(document))


# ---- in memory -----------------------------------------------------------------------------------------------


def test_memory_forgets_what_was_used_least_recently() -> None:
    size = entry().num_bytes
    store = MemoryStore(5 * size // 2)
    for token in (1, 2):
        store.put([token], entry())
    assert store.get([1]) is not None  # now 2 is the oldest
    store.put((3,), entry())
    assert [store.get([token]) is not None for token in (1, 2, 3)] == [True, False, True]
    assert (len(store), store.num_bytes) == (2, 2 * size)


# ---- rows of ended queries, which serve the next turn --------------------------------------------------------


def cache_of(num_columns: int) -> Cache:
    return Cache({"0.keys": torch.zeros(num_columns)}, num_columns)


def test_the_least_recently_used_goes_first_and_the_budget_holds() -> None:
    turns = TurnCaches()
    turns.max_bytes = 2 * cache_of(64).num_bytes
    for start in (1, 2):
        turns.keep((start, 5, 5), cache_of(64), 0)
    assert turns.find([1, 5, 9], 1) is not None
    turns.keep((3, 5, 5), cache_of(64), 0)
    assert turns.num_bytes == turns.max_bytes
    assert turns.find([2, 5, 5], 1) is None
    found = turns.find([1, 5, 9], 1)
    assert found is not None
    assert found.num_tokens == 2
    turns.keep((4,), cache_of(64 * 4), 0)
    assert turns.find([4], 1) is None, "larger than the budget"


def test_a_longer_turn_takes_the_place_of_those_that_it_continues() -> None:
    turns = TurnCaches()
    turns.max_bytes = 1 << 20
    turns.keep((1, 2), cache_of(64), 0)
    turns.keep((1, 2, 3), cache_of(128), 0)
    assert turns.num_bytes == cache_of(128).num_bytes
    turns.keep((1, 2, 4), cache_of(64), 0)
    assert turns.num_bytes == cache_of(128).num_bytes + cache_of(64).num_bytes


def test_the_longest_common_beginning_is_found_if_it_covers_the_document() -> None:
    turns = TurnCaches()
    turns.max_bytes = 1 << 20
    for row in ((1, 2, 3), (7,), (1, 2, 3, 4)):
        turns.keep(row, cache_of(len(row)), 0)
    found = turns.find([1, 2, 3, 4, 5], 2)
    assert found is not None
    assert (found.cache.num_tokens, found.num_tokens) == (4, 4)
    assert turns.find([1, 2, 3, 4, 5], 5) is None
    assert turns.find([6], 0) is None
