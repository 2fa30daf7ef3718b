"""What does starting with a GGUF file cost before its first pass?

Processor time, in a new process each, of what a party does with a file besides llama.cpp's own loading: the header, the
tokenizer, what an engine makes of it (fingerprints, prompts, a description), the file's fingerprint, and the child that
loads the file first; the last two without and with what an earlier start has kept. The header of 152,000 tokens and as
many merges is 6 MB in 300,000 pieces, for which Python needs at least 0.1 s at 0.3 us each, and so it does for their
decoding; the package tokenizers builds a vocabulary in 0.1 s. Prediction for Qwen2.5 (152,000 tokens): header 0.1 s,
tokenizer 0.4 s, engine 0.5 s, and with what was kept 0.01 s for fingerprint and child together. Target: 1.5 s in all,
0.5 s for SmolLM2 (49,000 tokens), kept parts included.

Expected run time: 10 s for each file and run; `--smoke` 10 s.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._common import finish, new_parser

PREDICTED = {"header": 0.1, "tokenizer": 0.4, "engine": 0.5, "fingerprint kept": 0.005, "child kept": 0.005}
"""Seconds of processor time, for 152,000 tokens."""
TARGET_S = 1.5
KEPT = ("header", "tokenizer", "engine", "fingerprint kept", "child kept")
"""What a second start pays."""


def measure(file: Path) -> dict[str, float]:
    """Seconds of processor time of each part, of this process and its children."""
    from tandem.conversation import SYSTEM_PROMPT
    from tandem.engine.engine import Engine
    from tandem.engine.template import find_template
    from tandem.plugins.gguf import header as gguf
    from tandem.plugins.gguf import tokenizer as gguf_tokenizer
    from tandem.plugins.llama.library import describe_build
    from tandem.plugins.llama.probe import probe

    describe_build("")
    gc.disable()  # as a party does meanwhile
    used: dict[str, float] = {}

    def timed(name: str, call: Callable[[], Any]) -> Any:
        before = _processor_s()
        result = call()
        used[name] = _processor_s() - before
        return result

    def make_engine() -> None:
        runner: Any = SimpleNamespace(
            vocab_size=1 << 20,
            context_length=header.context_length,
            configurations=(None, None),
            fault=None,
            weights_fingerprint="",
            describe=dict,
        )
        template = find_template("auto", str(file), info, SYSTEM_PROMPT)
        engine = Engine(str(file), runner, tokenizer, info, template)
        engine.describe()
        engine.build_prompt("Which game should Mira try?", ["Mira likes puzzle games."], 64)

    gguf.SETTLED_NS = -(1 << 62)  # a file that has just been copied is kept, too
    header = timed("header", lambda: gguf.check(file))
    tokenizer, info = timed("tokenizer", lambda: gguf_tokenizer.load(file))
    timed("engine", make_engine)
    state = "kept" if os.environ["KEPT"] else "new"
    timed(f"fingerprint {state}", lambda: gguf.fingerprint(file))
    timed(f"child {state}", lambda: probe(file))
    return used


def _processor_s() -> float:
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in both)


def run(file: Path, cache: str, kept: str) -> dict[str, float]:
    """A new process. kept: not empty where an earlier one has kept what it found."""
    command = [sys.executable, __file__, "--child", str(file)]
    environment = os.environ | {"XDG_CACHE_HOME": cache, "KEPT": kept}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    """Every file in turn, several times."""
    parser = new_parser(__doc__)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE.gguf", help="default: a small one")
    parser.add_argument("--runs", type=int, default=3, help="of each file")
    parser.add_argument("--smoke", action="store_true", help="one run of a small file")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(measure(arguments.child)))
        return
    print(f"prediction: {PREDICTED} s of processor time; target {TARGET_S} s")
    medians = {}
    with tempfile.TemporaryDirectory() as folder:
        files = arguments.files
        if arguments.smoke or not files:
            from tests.tiny_gguf import write_gguf

            files = [write_gguf(Path(folder) / "tiny.gguf")]
        for file in files:
            results = []
            for number in range(1 if arguments.smoke else arguments.runs):
                cache = f"{folder}/{file.stem}-{number}"
                results.append(run(file, cache, "") | run(file, cache, "yes"))
            medians[file.name] = found = {
                name: statistics.median(result[name] for result in results) for name in results[0]
            }
            parts = ", ".join(f"{name} {seconds:.3f}" for name, seconds in found.items())
            total_s = sum(found[name] for name in KEPT)
            print(
                f"{file.name}: {parts}; a second start {total_s:.2f} s, {total_s / TARGET_S:.2f} of the target"
            )
    finish({"predicted": PREDICTED, "target_s": TARGET_S, "medians": medians})


if __name__ == "__main__":
    main()
