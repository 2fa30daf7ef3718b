"""Loads a file that was not seen before in a process of its own first: what ends llama.cpp ends that one alone.

llama.cpp checks much of a file by assertions, and one that fails ends its process: without this, the one that serves.
What a header shows, `tandem.plugins.gguf` refuses. For everything else a child (`python -m tandem.plugins.llama`) loads
the file with its tokenizer and computes one token, with limits of memory and time. That a file came through is kept by
its content, so a child is started once per file and build of llama.cpp. It computes on the processor alone: what the
driver of a GPU makes of a file is not tried.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from tandem import plugins
from tandem.errors import GenerationError
from tandem.plugins.llama.library import describe_build
from tandem.system.paths import cache_folder, locked, write_whole
from tandem.system.processes import environment

_log = logging.getLogger("tandem")
_COMMAND = (sys.executable, "-P", "-m", "tandem.plugins.llama")
BEGUN, LOADED = "begun", "loaded"
"""Lines that a child writes: that it has come as far as the file, and through it."""
MAX_S, _BYTES_PER_S = 60.0, 50e6
"""How long a child may take: so many seconds, and longer for a large file on a slow disk."""


def probe(
    file: Path, adapter: Path | None = None, named: str = "", command: Sequence[str] = _COMMAND
) -> None:
    """Let a child load a file, unless that went well before. Raises GenerationError, with the reason in one sentence.

    adapter: a LoRA that is loaded with it. named: a library of llama.cpp, as `library` takes it. command: what loads;
    it gets the library and the paths as further arguments.
    """
    contents = " ".join(
        plugins.find("model_format", "gguf").fingerprint(path) for path in (file, adapter) if path
    )
    key = sha256(f"{contents} {describe_build(named)}".encode()).hexdigest()[:32]
    folder = cache_folder() / "llama" / "loaded"
    proof = folder / key
    if proof.exists():
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # then every start tries it
        _try(file, adapter, (*command, named))
        return
    with locked(folder / f"{key}.lock"):
        if not proof.exists() and _try(file, adapter, (*command, named)):
            with suppress(OSError):
                write_whole(proof, os.fsencode(file))


def _try(file: Path, adapter: Path | None, command: Sequence[str]) -> bool:
    """Whether a child came through; False where none came as far as the file. Raises GenerationError."""
    limit_s = MAX_S + file.stat().st_size / _BYTES_PER_S
    try:
        done = subprocess.run(
            [*command, *(str(path) for path in (file, adapter) if path)],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            env=environment(GGML_NO_BACKTRACE="1"),
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise GenerationError(
            f"llama.cpp has not loaded {str(file)!r} within {limit_s:.0f} s; use another file, or a faster disk."
        ) from None
    except OSError as error:  # no process can be started
        done = subprocess.CompletedProcess(command, 1, b"", str(error).encode())
    begun, _, outcome = done.stdout.decode(errors="replace").partition("\n")
    if begun != BEGUN:  # that is not the file's fault
        _log.warning("%s was not tried apart before it is loaded: %s", file, _last_words(done.stderr))
        return False
    if (words := _printable(outcome)) != LOADED:
        raise GenerationError(words or _describe_end(file, done))
    return True


def _describe_end(file: Path, done: subprocess.CompletedProcess[bytes]) -> str:
    reason = f"code {done.returncode}"
    if done.returncode < 0:
        with suppress(ValueError):
            reason = signal.Signals(-done.returncode).name
    words = _last_words(done.stderr)
    return f"{str(file)!r} ends llama.cpp ({reason}{words and f': {words}'}); download it again, or use another file."


def _last_words(stderr: bytes) -> str:
    """The text of an assertion or exception, without its place in the source; else the last line."""
    lines = [line.strip() for line in stderr.decode(errors="replace").splitlines() if line.strip()]
    telling = [line for line in lines if "GGML_" in line or line.startswith("what():")]
    line = (telling or lines or [""])[0 if telling else -1]
    place, sign, assertion = line.partition("GGML_")
    shown = sign + assertion if place.rstrip(": ").rpartition(":")[2].isdigit() else line
    return _printable(shown.removeprefix("what():"))[:200].rstrip(". ")


def _printable(text: str) -> str:
    return "".join(filter(str.isprintable, text)).strip()
