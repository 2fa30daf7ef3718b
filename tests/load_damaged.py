"""Loads damaged copies of a small GGUF file, one after the other, in one process, which none of them may end.

python -m tests.load_damaged FOLDER COUNT SEED writes what came of each, then the memory that it took, as lines of JSON.
"""

from __future__ import annotations

import json
import random
import resource
import sys
from pathlib import Path

from tandem.engine.engine import Engine
from tandem.errors import GenerationError
from tandem.plugins.gguf import header as gguf
from tests.damaged_gguf import damage, find_fields
from tests.tiny_gguf import write_gguf


def main(folder: Path, count: int, seed: int) -> None:
    """Needs llama.cpp."""
    content = write_gguf(folder / "whole.gguf").read_bytes()
    ask(load(folder / "whole.gguf"))
    fields, draw = find_fields(content), random.Random(seed)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(count):
        file = folder / f"{number}.gguf"
        file.write_bytes(damage(content, fields, draw))
        said = {"number": number, "stage": "header", "sentence": ""}
        try:
            gguf.check(file)
            said["stage"] = "load"
            engine = load(file)
            said["stage"] = "ask"
            ask(engine)
        except GenerationError as error:
            said["sentence"] = str(error).replace(repr(str(file)), "FILE")
        print(json.dumps(said), flush=True)
        file.unlink()
    print(json.dumps({"grown_kb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before}))


def load(file: Path) -> Engine:
    """As a party does. Raises GenerationError."""
    return Engine.load(str(file), engine="llama", template="plain", num_threads=1)


def ask(engine: Engine) -> None:
    """One pass. Raises GenerationError where the context is too short."""
    engine.open("s", "ab 12", [], 4)
    engine.next_logits("s", ())
    engine.close("s")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
