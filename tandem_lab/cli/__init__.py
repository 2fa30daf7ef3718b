"""The commands of `tandem lab`."""

from __future__ import annotations

from tandem.cli.usage import new_app
from tandem_lab.cli import (
    bench,
    bench_federated,
    bench_speculative,
    evaluate,
    evolve,
    fuzz,
    netlab,
    replay,
    timeline,
)
from tandem_lab.cli.bench_options import ListCommand


def _lab() -> None:
    """Run experiments: simulations, test networks, benchmarks."""


app = new_app(_lab)
app.command()(fuzz.fuzz)
app.add_typer(netlab.app, name="netlab")
app.command()(replay.replay)
bench.app.command(cls=ListCommand)(bench_speculative.speculative)
bench.app.command(cls=ListCommand)(bench_federated.federated)
app.add_typer(bench.app, name="bench")
app.add_typer(evaluate.app, name="eval")
app.command()(evolve.evolve)
app.command()(timeline.timeline)
