"""Loads a GGUF file as a party does, and computes one token: the child of `tandem.plugins.llama.probe`.

Arguments: the library of llama.cpp (empty: that of the package), the file, and that of an adapter, if there is one. It
writes BEGUN once it has come as far as the file, then LOADED, or the sentence about what is wrong with it.
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

from tandem.engine.port import LoadOptions, Row
from tandem.errors import GenerationError
from tandem.plugins.llama.library import library
from tandem.plugins.llama.probe import BEGUN, LOADED
from tandem.plugins.llama.runner import GGUF, LlamaRunner

_MORE_BYTES = 4 << 30
"""Memory for loading besides twice the file's size; a file that is mapped does not count."""


def main(named: str, file: str, adapter: str = "") -> None:
    """Returns where the file can be used, and where the sentence is written why not."""
    library(named)
    path = Path(file)
    _limit_memory(path.stat().st_size)
    _say(BEGUN)
    try:
        tokenizer, _ = GGUF.load_tokenizer(path)
        options = LoadOptions(num_threads=1, library=named)
        runner = LlamaRunner(path, options, Path(adapter) if adapter else None)
        runner.check_tokenizer(tokenizer, file)
        runner.open("probe", [Row((), (0, runner.vocab_size - 1))], 0, num_scored=0, is_later_turn=False)
        runner.forward({"probe": ()}, {}, None)
    except GenerationError as error:
        _say(str(error))
    except MemoryError:
        _say(f"{file!r} needs more memory than its size explains; download it again, or use another file.")
    else:
        _say(LOADED)


def _limit_memory(num_bytes: int) -> None:
    """Allow what a file of this size can need, and no core file."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    needed = 2 * num_bytes + _MORE_BYTES
    resource.setrlimit(
        resource.RLIMIT_DATA, (needed if most == resource.RLIM_INFINITY else min(needed, most), most)
    )


def _say(line: str) -> None:
    sys.stdout.buffer.write(f"{line}\n".encode(errors="replace"))
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)  # nothing needs to be freed in order
