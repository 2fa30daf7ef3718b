"""Files that end llama.cpp: a child is what they end, and the process that serves says so in one sentence."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tandem.engine.engine import Engine
from tandem.errors import GenerationError
from tandem.plugins.gguf import header as gguf
from tandem.plugins.llama import probe
from tests.damaged_gguf import STRING, U32, add_key, build, text, u32
from tests.tiny_gguf import write_gguf

pytest.importorskip("gguf", reason="the package gguf (extra torch) is not installed")

ROOT = Path(__file__).parents[3]
Try = Callable[..., int]


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that nobody has seen; it need not be one of a model."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "x.gguf").write_bytes(build())
    return tmp_path / "x.gguf"


@pytest.fixture
def try_with(tmp_path: Path) -> Try:
    """try_with(code, file): the file is tried by a child that runs this code; how many children there were so far."""

    def try_with(code: str, *files: Path) -> int:
        tried = tmp_path / "tried"
        counting = f"import os, signal, time\nopen({str(tried)!r}, 'a').write('x')\n"
        probe.probe(*files, command=(sys.executable, "-c", counting + code))
        return len(tried.read_text())

    return try_with


GOOD = "print('begun'); print('loaded')"
ENDS = "ends llama.cpp ({}); download it again, or use another file."


def test_a_file_is_tried_once_wherever_it_is_until_it_changes(
    file: Path, tmp_path: Path, try_with: Try
) -> None:
    assert [try_with(GOOD, file) for _ in range(3)] == [1, 1, 1]
    elsewhere = Path(shutil.copy(file, tmp_path / "another.gguf"))
    assert try_with(GOOD, elsewhere) == 1
    assert [try_with(GOOD, file, elsewhere) for _ in range(2)] == [2, 2], "an adapter comes with it"
    file.write_bytes(build(num_data=300))
    assert try_with(GOOD, file) == 3


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", ENDS.format("SIGSEGV")),
        ("os.kill(os.getpid(), signal.SIGKILL)", ENDS.format("SIGKILL")),
        (
            "os.write(2, b'/a b/c.cpp:12: GGML_ASSERT(x == y) failed\\nmore\\n'); os.abort()",
            ENDS.format("SIGABRT: GGML_ASSERT(x == y) failed"),
        ),
        (
            "os.write(2, b'terminate called after ...\\n  what():  bad\\x1b[31m map\\n'); os.abort()",
            ENDS.format("SIGABRT: bad[31m map"),
        ),
        ("os._exit(7)", ENDS.format("code 7")),
        ("print('It is\\x07\\n wrong.')", "It is wrong."),
        ("time.sleep(60)", "has not loaded within 0 s; use another file, or a faster disk."),
    ],
)
def test_what_ends_the_child_is_one_sentence_each_time(
    file: Path, try_with: Try, monkeypatch: pytest.MonkeyPatch, code: str, reason: str
) -> None:
    if "sleep" in code:
        monkeypatch.setattr(probe, "MAX_S", 0.4)
    for _ in range(2):
        with pytest.raises(GenerationError) as raised:
            try_with("print('begun', flush=True)\n" + code, file)
        assert (
            str(raised.value).replace(f"{str(file)!r} ", "").replace("llama.cpp has not", "has not") == reason
        )
    assert try_with(GOOD, file) == 3


def load(file: Path) -> Engine:
    return Engine.load(str(file), engine="llama", template="plain", num_threads=1)


@pytest.mark.parametrize(
    ("key", "kind", "value", "reason"),
    [
        (
            "llama.expert_count",
            U32,
            u32(1 << 20),
            "GGML_ASSERT(hparams.n_expert <= LLAMA_MAX_EXPERTS) failed",
        ),
        (
            "llama.rope.scaling.type",
            STRING,
            text("sideways"),
            "GGML_ASSERT(hparams.rope_scaling_type_train != LLAMA_ROPE_SCALING_TYPE_UNSPECIFIED) failed",
        ),
    ],
)
def test_a_file_that_fails_an_assertion_of_llama_cpp_is_one_sentence(
    tmp_path: Path, key: str, kind: int, value: bytes, reason: str
) -> None:
    file = tmp_path / "bad.gguf"
    file.write_bytes(add_key(write_gguf(tmp_path / "good.gguf").read_bytes(), key, kind, value))
    gguf.check(file)  # its header is whole
    with pytest.raises(GenerationError) as raised:
        load(file)
    assert str(raised.value) == f"{str(file)!r} {ENDS.format(f'SIGABRT: {reason}')}"


@pytest.mark.nightly("takes minutes; headers are damaged at every change, and two files that end a child")
def test_no_damaged_file_ends_the_process_that_loads_it(tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "tests.load_damaged", str(tmp_path), "2000", "5"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, cwd=ROOT)
    *said, last = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, (said[-1], done.stderr[-1000:])
    assert last["grown_kb"] < 100 << 10
    for outcome in said:
        sentence = outcome["sentence"]
        assert not sentence or (sentence.endswith(".") and sentence.isprintable()), outcome
        assert not sentence or outcome["stage"] == "ask" or "FILE" in sentence, outcome
    loaded = [outcome["sentence"] for outcome in said if outcome["stage"] != "header"]
    assert sum("ends llama.cpp (SIGABRT: GGML_ASSERT(" in sentence for sentence in loaded) > 10
    assert sum("llama.cpp cannot load" in sentence for sentence in loaded) > 10
    assert loaded.count("") > 100
