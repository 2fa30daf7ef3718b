"""`tandem status`: what runs in a cluster, in about ten lines, or in every detail."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated, Any

from typer import Option

from tandem import plugins
from tandem.cli.options import AsJson, SettingsOptions, with_options
from tandem.cli.output import StageLog, emit, plural, print_json
from tandem.corpora import describe_model
from tandem.topology import Party

DAY_S = 86_400


@with_options()
def status(
    address: Annotated[
        str | None,
        Option(
            metavar="HOST:PORT", help="the cluster (default: the one that `tandem up` started or joined here)"
        ),
    ] = None,
    as_json: AsJson = False,
    *,
    settings: SettingsOptions,
) -> int:
    """Show nodes, models, indexes and actors, dead ones included; exits with 1 if there are any.

    Of the cluster that is named, or else of the device or the cluster that runs here. --json has every counter.
    """
    log = StageLog(is_quiet=as_json)
    config = settings.load()
    running = plugins.find("running", "device")
    if not address and not config.is_federated and running.is_running():
        state = running(config).status()
    else:
        from tandem.client.tandem import find_runtime

        state = find_runtime(config).read_status(address, config, log)
    if as_json:
        print_json(state)
    else:
        emit("\n".join(summary_lines(state)))
    return int(any(actor["state"] == "dead" for actor in state["actors"]))


def summary_lines(state: dict[str, Any]) -> Iterator[str]:
    """A line for the cluster; for each party what it has loaded, its living actors, and a line for each other one."""
    nodes = [node for node in state["nodes"] if node["alive"]]
    where = ", ".join(f"{'/'.join(node['roles']) or 'other'} {node['address']}" for node in nodes)
    yield f"{'cluster':<8} {state['cluster']}" + (f", {plural(len(nodes), 'node')}: {where}" if nodes else "")
    if shared := {described.get("vocabularies", "") for described in state["parties"].values()} - {""}:
        yield f"{'answers':<8} of {', '.join(shared)}"
    for party, described in state["parties"].items():
        yield f"{party:<8} {_loaded(described, _pace_ms(party, state))}{_watched(party, state)}"
        if fallback := described.get("batching"):
            yield f"{'':<8} engine: {fallback}"
        if nodes or party == Party.DEVICE:  # of a cloud that was joined, nobody here knows the actors
            yield from (f"{'':<8} {line}" for line in _actor_lines(party, state))


def _pace_ms(party: str, state: dict[str, Any]) -> float | None:
    """Milliseconds per pass of a party's decoder since it started; None before the first."""
    extras = _extras(party, state)
    paces = (1e3 * extra["decode_s"] / extra["num_forwards"] for extra in extras if extra.get("num_forwards"))
    return next(paces, None)


def _watched(party: str, state: dict[str, Any]) -> str:
    look_s = next((extra["watched_s"] for extra in _extras(party, state) if "watched_s" in extra), None)
    if look_s is None:
        return ""
    return f", looked at {_moment(look_s)}" if look_s else ", not watched now"


def _extras(party: str, state: dict[str, Any]) -> list[dict[str, Any]]:
    return [actor.get("extra") or {} for actor in state["actors"] if actor["party"] == party]


def _loaded(described: dict[str, Any], pace_ms: float | None) -> str:
    model = f"model {describe_model(described['model'])}" if "model" in described else "model unknown"
    if "engine" in described:
        pace = "" if pace_ms is None else f", {pace_ms:.0f} ms per token"
        model += f" ({described['engine']}, {described['dtype']}{pace})"
    if described.get("batching") == "":
        model += " in batches"
    documents = described.get("num_documents")
    index = described.get("factory", "unknown")
    return f"{model}, index {index}" + ("" if documents is None else f" of {plural(documents, 'document')}")


def _actor_lines(party: str, state: dict[str, Any]) -> Iterator[str]:
    own = [actor for actor in state["actors"] if actor["party"] == party]
    alive = [actor for actor in own if actor["state"] == "alive"]
    if all(actor["state"] == "absent" for actor in own):
        yield f"not up; run `tandem up {party} --join ADDRESS` on its machine"
        return
    if alive:
        kinds: dict[int, list[str]] = {}
        for actor in alive:
            kinds.setdefault(actor["pid"], []).append(actor["name"].partition("/")[2])
        names = ", ".join(f"{'+'.join(sharing)} {pid}" for pid, sharing in kinds.items())
        since = [actor["started_s"] for actor in alive if actor["started_s"]]
        yield f"alive{_since(min(since, default=None))}, with process ids: {names}"
    others = {
        actor["process"] or actor["name"]: actor for actor in own if actor["state"] != "alive"
    }  # by process
    for name, actor in others.items():
        process = f", process {actor['pid']}" if actor["pid"] else ""
        reason = f": {actor['reason']}" if actor["reason"] else ""
        yield f"{actor['state'].upper()} {name}{process}{_since(actor['ended_s'])}{reason}"
    if any(actor["state"] == "dead" for actor in others.values()):
        yield _remedy(party, state.get("supervisors", {}).get(party))


def _remedy(party: str, supervisor: dict[str, Any] | None) -> str:
    """The remedy for a party with a dead actor. supervisor: what its supervisor reports; None: it has none."""
    if supervisor is None:
        return f"run `tandem up {party}` on its machine to replace this side's actors"
    problem = f"; the last attempt failed: {supervisor['problem']}" if supervisor["problem"] else ""
    return f"its supervisor starts it again{problem}"


def _since(moment_s: float | None) -> str:
    return "" if moment_s is None else f" since {_moment(moment_s)}"


def _moment(moment_s: float) -> str:
    form = "%H:%M:%S" if abs(time.time() - moment_s) < DAY_S else "%Y-%m-%d %H:%M"
    return time.strftime(form, time.localtime(moment_s))
