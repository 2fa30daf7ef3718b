"""Does any input from a peer do more than be read or refused? Coverage-guided where atheris is installed.

All that reads bytes of a peer (`tandem_lab.reliability.targets`): frames of the link with their specs, streams, votes
of every codec, both frames of joining, messages within a site. Inputs start from the frames of real answers. With
atheris (`pip install atheris`, no dependency of Tandem) libFuzzer changes what reaches new code, and the readers run in
a process of their own; otherwise, or with --blind, changes are random, as in `benchmarks/reliability.py frames`.

Prediction: nothing but ProtocolErrors.

Expected run time: 3 minutes for 1,000,000 inputs, 15 with atheris; `--smoke`: 20 s. A fault ends the run with its
traceback and exit code 1; atheris leaves the input in the present folder.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

LOOKED_AT = (
    "tandem.protocol",
    "tandem.codecs",
    "tandem.transport",
    "tandem.joining",
    "tandem_lab.reliability.targets",
)
"""Packages whose branches atheris counts."""
MAX_INPUT_BYTES = 4096


def guided(corpus: Path, num_runs: int, seed: int) -> dict[str, Any]:
    """Fuzz in another process; what libFuzzer reports in the end."""
    command = [sys.executable, __file__, "--child", str(corpus), "--runs", str(num_runs), "--seed", str(seed)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            print(line, end="", file=sys.stderr)
    if process.returncode:
        sys.exit(1)
    covered = [match for line in lines if (match := re.search(r"cov: (\d+) ft: (\d+) corp: (\d+)", line))]
    first, last = [
        dict(zip(("edges", "features", "inputs"), map(int, each.groups()), strict=True))
        for each in (covered[0], covered[-1])
    ]
    return {"first": first, "last": last}


def fuzz(corpus: Path, num_runs: int, seed: int) -> None:
    """In the process of its own; libFuzzer ends it."""
    import atheris

    with atheris.instrument_imports(include=list(LOOKED_AT)):
        from tandem_lab.reliability.targets import read
    options = [f"-runs={num_runs}", f"-seed={seed}", f"-max_len={MAX_INPUT_BYTES}", "-rss_limit_mb=2048"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], read_input(read))
    atheris.Fuzz()


def read_input(read: Any) -> Any:
    """What atheris calls; its return value counts for nothing."""

    def read_one(data: bytes) -> None:
        read(data)

    return read_one


def blind(inputs: Sequence[bytes], num_runs: int, seed: int) -> dict[str, Any]:
    """Random changes."""
    from tandem_lab.reliability.malformed import mutations
    from tandem_lab.reliability.targets import read

    num_read = sum(read(data) for data in mutations(inputs, num_runs, Random(seed)))
    return {"read": num_read, "refused": num_runs - num_read}


def main(argv: Sequence[str] | None = None) -> None:
    """Record frames, and fuzz from them."""
    from benchmarks._common import new_parser

    parser = new_parser(__doc__)
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--blind", action="store_true", help="without atheris")
    parser.add_argument("--smoke", action="store_true", help="20,000 inputs")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.child:
        fuzz(arguments.child, arguments.runs, arguments.seed)
        return
    from benchmarks._common import finish
    from tandem_lab.reliability.malformed import record_frames
    from tandem_lab.reliability.targets import seeds

    num_runs = 20_000 if arguments.smoke else arguments.runs
    is_guided = not arguments.blind and importlib.util.find_spec("atheris") is not None
    print("prediction: nothing but ProtocolErrors", flush=True)
    inputs = seeds(record_frames())
    start_s = time.monotonic()
    if is_guided:
        with tempfile.TemporaryDirectory() as folder:
            for number, data in enumerate(inputs):
                (Path(folder) / str(number)).write_bytes(data)
            result = guided(Path(folder), num_runs, arguments.seed)
    else:
        result = blind(inputs, num_runs, arguments.seed)
    seconds = time.monotonic() - start_s
    finish(
        {"runs": num_runs, "seeds": len(inputs), "guided": is_guided, "inputs_per_s": num_runs / seconds}
        | result
    )


if __name__ == "__main__":
    main()
