"""`tandem lab evolve`: a target that changes under its drafter, and what each kind of update brings for its bytes."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from tandem.cli.options import parse_count
from tandem.cli.output import StageLog
from tandem.client.answers import to_plain
from tandem_lab.cli import outputs
from tandem_lab.environment import describe_environment

NAMES = ("results.json", "table.txt", "updates.png")
SEEDS = 3

Seeds = Annotated[
    int | None, typer.Option(metavar="N", parser=parse_count, help=f"repeat with N seeds (default: {SEEDS})")
]
Out = Annotated[str | None, typer.Option(metavar="DIR", help="where the files go (default: bench/evolve)")]
Smoke = Annotated[bool, typer.Option("--smoke", help="one seed, a few steps: only to see that it runs")]


def evolve(seeds: Seeds = None, out: Out = None, smoke: Smoke = False) -> int:
    """Fine-tune the bundled reader three ways, and measure a drafter of it after each kind of update.

    The files have what is measured so far from the first row on.
    """
    log = StageLog()
    folder = outputs.check_folder("--out", out or "bench/evolve", NAMES)
    from tandem_lab.evolve.study import SMOKE, Row, Size, Study
    from tandem_lab.evolve.tables import plot_updates, text_of

    size = SMOKE if smoke else Size()
    environment = describe_environment()
    rows: list[Row] = []
    for seed in range(1 if smoke else seeds or SEEDS):
        for row in Study(seed, size, log).run():
            rows.append(row)
            results = {"rows": [asdict(each) for each in rows], "environment": environment}
            outputs.write_text(
                "--out", folder / "results.json", json.dumps(to_plain(results), indent=1) + "\n"
            )
            outputs.write_text("--out", folder / "table.txt", text_of(rows) + "\n")
    print(text_of(rows))
    plot_updates(rows, folder / "updates.png")
    log(f"files: {', '.join(str(folder / name) for name in NAMES)}")
    return 0
