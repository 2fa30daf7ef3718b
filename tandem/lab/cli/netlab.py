"""`tandem netlab up`, `shape`, `down` and `status`: the test network, for a person."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tandem.cli.terminal import print_json
from tandem.errors import TandemError
from tandem.lab.netlab.lab import DEFAULT_NAME, NetLab, lab_names
from tandem.lab.netlab.layout import parse_subnet
from tandem.lab.netlab.shape import Shape, parse_duration, parse_rate, parse_share

_NETEM = {
    "host": "by this machine's kernel",
    "router": "by a User-Mode-Linux router (process {pid}), because this machine's kernel has none",
}


def up(args: Namespace) -> int:
    """Builds a network. Raises NetLabError; a half-built one is removed."""
    shape = _shape(args, Shape())
    lab = NetLab(args.name, subnet=parse_subnet(args.subnet) if args.subnet else None)
    lab.up(shape)
    print("\n".join(_lines(lab.status())))
    option = "" if lab.name == DEFAULT_NAME else f" --name {lab.name}"
    print(f"Change it: tandem netlab shape{option} --rtt 200ms")
    print(f"Remove it: tandem netlab down{option}")
    return 0


def shape(args: Namespace) -> int:
    """Changes the link of a network that is up. Raises NetLabError."""
    lab = NetLab(args.name)
    wanted = _shape(args, lab.current_shape())
    lab.shape(wanted)
    print(f"The link of {lab.name} has {wanted}.")
    return 0


def down(args: Namespace) -> int:
    """Removes a network. Raises NetLabError if there is none."""
    ended = NetLab(args.name).down()
    print(f"The test network {args.name} is removed.")
    if ended:
        print(f"Processes that ran in its hosts and were ended: {ended}.")
    return 0


def status(args: Namespace) -> int:
    """Shows every network of this machine, whole or not."""
    found = [_status(name) for name in lab_names()]
    if args.json:
        print_json({"networks": found})
    else:
        print("\n".join(line for each in found for line in _lines(each)) or "There is no test network here.")
    return 0


def _status(name: str) -> dict[str, Any]:
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
            yield f"Remove what is left: tandem netlab down --name {name}"
        return
    yield f"The test network {name} is up: {Shape(**state['shape'])}."
    yield f"Shaped with tc netem {_NETEM[state['netem']].format(pid=state['router_pid'])}."
    for host, each in state["hosts"].items():
        yield f"{host:<7} {each['address']:<15} enter with: {each['enter']} COMMAND"


def _shape(args: Namespace, before: Shape) -> Shape:
    """A shape with what the command line names."""
    named: dict[str, Any] = {}
    if args.rtt is not None:
        named["rtt_s"] = parse_duration(args.rtt)
    if args.jitter is not None:
        named["jitter_s"] = parse_duration(args.jitter)
    if args.rate is not None:
        named["rate_bits_per_s"] = parse_rate(args.rate)
    if args.loss is not None:
        named["loss"] = parse_share(args.loss)
    return replace(before, **named)
