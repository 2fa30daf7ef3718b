"""`tandem lab evolve`: a target that changes under its drafter, and what each kind of update brings for its bytes."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from tandem.cli.options import parse_count
from tandem.cli.output import StageLog, json_safe
from tandem.lab.cli import outputs
from tandem.lab.environment import describe_environment

NAMES = ("results.json", "table.txt", "updates.png")
SEEDS = 3

Seeds = Annotated[
    int | None, typer.Option(metavar="N", parser=parse_count, help=f"repeat with N seeds (default: {SEEDS})")
]
Out = Annotated[str | None, typer.Option(metavar="DIR", help="where the files go (default: bench/evolve)")]
Smoke = Annotated[bool, typer.Option("--smoke", help="one seed, a few steps: only to see that it runs")]


def evolve(seeds: Seeds = None, out: Out = None, smoke: Smoke = False) -> int:
    """Fine-tune the bundled reader three ways, and measure a drafter of it after each kind of update."""
    log = StageLog()
    folder = outputs.check_folder("--out", out or "bench/evolve", NAMES)
    from tandem.lab.evolve.plot import plot_updates
    from tandem.lab.evolve.study import SMOKE, Size, Study
    from tandem.lab.evolve.tables import text_of

    size = SMOKE if smoke else Size()
    rows = [row for seed in range(1 if smoke else seeds or SEEDS) for row in Study(seed, size, log).run()]
    text = text_of(rows)
    print(text)
    outputs.write_text("--out", folder / "table.txt", text + "\n")
    results = {"rows": [asdict(row) for row in rows], "environment": describe_environment()}
    outputs.write_text("--out", folder / "results.json", json.dumps(json_safe(results), indent=1) + "\n")
    plot_updates(rows, folder / "updates.png")
    log(f"files: {', '.join(str(folder / name) for name in NAMES)}")
    return 0
