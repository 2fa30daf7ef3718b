"""The commands of `tandem lab`."""

from __future__ import annotations

from tandem.cli.options import new_app
from tandem_lab.cli import audit, bench, evaluate, fuzz, netlab, replay


def _lab() -> None:
    """Run experiments: simulations, test networks, benchmarks."""


app = new_app(_lab)
app.command()(audit.audit)
app.command()(fuzz.fuzz)
app.add_typer(netlab.app, name="netlab")
app.command()(replay.replay)
app.command(cls=bench.ListCommand)(bench.bench)
app.command("eval")(evaluate.evaluate)
