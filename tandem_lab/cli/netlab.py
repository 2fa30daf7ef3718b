"""`tandem lab netlab up`, `shape`, `down` and `status`: the test network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any

import typer

from tandem.cli.options import AsJson, new_app
from tandem.cli.output import print_json
from tandem.errors import TandemError
from tandem_lab.netlab.lab import DEFAULT_NAME, NetLab, lab_names
from tandem_lab.netlab.layout import parse_subnet
from tandem_lab.netlab.shape import Shape, parse_duration, parse_rate, parse_share

_NETEM = {
    "host": "by this machine's kernel",
    "router": "by a User-Mode-Linux router (process {pid}), because this machine's kernel has none",
}

Name = Annotated[str, typer.Option(metavar="N", help="of the network (default: lab)", show_default=False)]
Rtt = Annotated[
    str | None, typer.Option(metavar="T", help="added round trip, half of it each way, such as 100ms")
]
Jitter = Annotated[str | None, typer.Option(metavar="T", help="of the round trip, up and down, such as 20ms")]
Rate = Annotated[str | None, typer.Option(metavar="R", help="for each way, such as 50mbit, or unlimited")]
Loss = Annotated[str | None, typer.Option(metavar="P", help="of the packets, for each way, such as 1%")]
Subnet = Annotated[
    str | None, typer.Option(metavar="RANGE", help="addresses (default: an unused range of 198.18.0.0/18)")
]


def _netlab() -> None:
    """Build a test network on this machine: two hosts and a bad link between them."""


app = new_app(_netlab)


@app.command()
def up(
    name: Name = DEFAULT_NAME,
    rtt: Rtt = None,
    jitter: Jitter = None,
    rate: Rate = None,
    loss: Loss = None,
    subnet: Subnet = None,
) -> int:
    """Build the two hosts and the link (as root)."""
    wanted = _change(Shape(), rtt, jitter, rate, loss)
    lab = NetLab(name, subnet=parse_subnet(subnet) if subnet else None)
    lab.up(wanted)
    print("\n".join(_lines(lab.status())))
    option = "" if lab.name == DEFAULT_NAME else f" --name {lab.name}"
    print(f"Change it: tandem lab netlab shape{option} --rtt 200ms")
    print(f"Remove it: tandem lab netlab down{option}")
    return 0


@app.command()
def shape(
    name: Name = DEFAULT_NAME, rtt: Rtt = None, jitter: Jitter = None, rate: Rate = None, loss: Loss = None
) -> int:
    """Change the link at once; what is not named stays (as root)."""
    lab = NetLab(name)
    wanted = _change(lab.current_shape(), rtt, jitter, rate, loss)
    lab.shape(wanted)
    print(f"The link of {lab.name} has {wanted}.")
    return 0


@app.command()
def down(name: Name = DEFAULT_NAME) -> int:
    """End what runs in the hosts and remove everything (as root)."""
    ended = NetLab(name).down()
    print(f"The test network {name} is removed.")
    if ended:
        print(f"Processes that ran in its hosts and were ended: {ended}.")
    return 0


@app.command()
def status(as_json: AsJson = False) -> int:
    """Show the networks of this machine, whole or not (as root)."""
    states = [_state(name) for name in lab_names()]
    if as_json:
        print_json({"networks": states})
    else:
        lines = [line for state in states for line in _lines(state)]
        print("\n".join(lines) or "There is no test network here.")
    return 0


def _state(name: str) -> dict[str, Any]:
    """One network's state; one that cannot be read does not hide the others."""
    try:
        return NetLab(name).status()
    except TandemError as error:
        return {"name": name, "state": "broken", "lacks": [str(error)]}


def _lines(state: dict[str, Any]) -> Iterator[str]:
    name = state["name"]
    if state["state"] != "up":
        lacks = ", ".join(state["lacks"]) or "everything"
        yield f"The test network {name} is {state['state']}; it lacks: {lacks}."
        if state["state"] == "broken":
            yield f"Remove what is left: tandem lab netlab down --name {name}"
        return
    yield f"The test network {name} is up: {Shape(**state['shape'])}."
    yield f"Shaped with tc netem {_NETEM[state['netem']].format(pid=state['router_pid'])}."
    for host, details in state["hosts"].items():
        yield f"{host:<7} {details['address']:<15} enter with: {details['enter']} COMMAND"


def _change(before: Shape, rtt: str | None, jitter: str | None, rate: str | None, loss: str | None) -> Shape:
    """A shape with what the command line names."""
    changes: dict[str, Any] = {}
    if rtt is not None:
        changes["rtt_s"] = parse_duration(rtt)
    if jitter is not None:
        changes["jitter_s"] = parse_duration(jitter)
    if rate is not None:
        changes["rate_bits_per_s"] = parse_rate(rate)
    if loss is not None:
        changes["loss"] = parse_share(loss)
    return replace(before, **changes)
