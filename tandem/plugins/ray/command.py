"""`tandem up` and `tandem down`: this machine's nodes of a cluster."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, BadParameter, Option

from tandem.cli.options import MODELS, SettingsOptions, with_options
from tandem.cli.output import StageLog, emit
from tandem.corpora import example_question
from tandem.errors import ClusterError
from tandem.system.paths import state_folder
from tandem.topology import as_party, in_words

if TYPE_CHECKING:
    from tandem.config.schema import Config
    from tandem.plugins.ray.nodes import NodeInfo

PartyArgument = Annotated[
    str,
    Argument(
        metavar="PARTY",
        help='device or cloud; in mode "federated" server, or the name of a worker',
        show_default=False,
    ),
]
Join = Annotated[
    str | None,
    Option(
        metavar="ADDRESS",
        help="the running node to join (default: the other party on this machine, else a new cluster)",
    ),
]
Runtime = Annotated[str | None, Option(metavar="NAME", hidden=True)]
"""Only for the sentence that says what `up` cannot do."""
TokenFile = Annotated[
    str | None,
    Option(metavar="FILE", help="with --join: the cluster's token, copied from the other machine"),
]
NodeOnly = Annotated[bool, Option("--node-only", help="only the node, without actors")]


@with_options(*MODELS)
def up(
    party: PartyArgument,
    join: Join = None,
    token_file: TokenFile = None,
    node_only: NodeOnly = False,
    runtime: Runtime = None,
    *,
    settings: SettingsOptions,
) -> int:
    """Start this machine's node of a cluster, as one of its parties, in the background.

    Without --join it joins another party where one runs on this machine, and starts a new cluster elsewhere. Where it
    runs already and some of its actors have died, they are replaced.
    """
    if token_file is not None and join is None:
        raise BadParameter("`tandem up --token-file` needs --join ADDRESS.")
    from tandem.plugins.ray import registry

    log = StageLog()
    config = settings.load(log, *([] if runtime is None else [f"cluster.runtime={runtime}"]))
    config.require_cluster("`tandem up`")
    if party not in config.parties:
        raise BadParameter(f"PARTY must be {' or '.join(config.parties)} (got {party!r})")
    party = as_party(party)
    with registry.locked():
        node = registry.running_node(party)
        if node is not None:
            node = _repair(node, join, config, log, node_only=node_only)
        if node is None:
            join = join or _find_other(party, config, log)
            token = registry.require_token(join, token_file) if join else registry.create_token()
            node = _start(party, join, config, token, log, node_only=node_only)
    emit(f"The {party} node is up at {node.address}.")
    if node_only:
        emit(f"It has no actors; `tandem up {party}` on one of the {party}'s machines starts them.")
    else:
        _print_hints(node, config, settings.config_file)
    return 0


def _find_other(party: str, config: Config, log: StageLog) -> str | None:
    from tandem.plugins.ray import nodes, registry

    for other in registry.running_nodes():
        if other.party in config.parties and other.party != party and nodes.is_listening(other.address):
            log(f"cluster: joining {in_words(other.party)} of this machine at {other.address}")
            return other.address
    return None


def _repair(
    node: NodeInfo, join: str | None, config: Config, log: StageLog, *, node_only: bool
) -> NodeInfo | None:
    """The running node with new actors in the place of dead ones; None if it had to be stopped.

    Raises ClusterError if the node misses nothing.
    """
    from tandem.config.schema import start_settings
    from tandem.plugins.ray import attach, nodes, registry, supervisor
    from tandem.sites.startup import check_files

    loss = None if node_only else _find_loss(node, join, config)
    if loss is None:
        raise ClusterError(
            f"The {node.party} node is already running at {node.address} (process {node.pid}); "
            "stop it with `tandem down` first."
        )
    log(f"found: {loss}")
    if join not in (None, node.address) or not nodes.is_listening(node.address):
        log(f"node: stopping the old one (process {node.pid})")
        _stop(node)
        return None
    log(f"party: replacing the {node.party}'s actors")
    check_files(config, (node.party,), log)
    registry.find_token(node.address)
    attach.attach(node.address, config)
    supervisor.start_party(node.party, config, log)
    log(f"party: {node.party} is ready")
    node = replace(node, settings=start_settings(config, node.party))
    registry.register(node)
    return node


def _find_loss(node: NodeInfo, join: str | None, config: Config) -> str | None:
    """Name what a running node lacks: its cluster, or some actors; None if nothing. Raises ClusterError."""
    from tandem.plugins.ray import actors, nodes

    if nodes.is_listening(node.address):
        return actors.find_loss(node.address, node.party, config)
    if join is None and not node.is_head:
        raise ClusterError(
            f"The {node.party} node of this machine (process {node.pid}) joined the cluster at {node.address}, "
            "which does not answer; stop the node with `tandem down`, or name the cluster to join with --join."
        )
    return f"the cluster at {node.address} does not answer"


def _start(
    party: str, join: str | None, config: Config, token: str | None, log: StageLog, *, node_only: bool
) -> NodeInfo:
    """Start a node and, unless `node_only`, its party's actors; it is registered before they start.

    Raises TandemError; a half-started node is stopped.
    """
    from tandem.config.schema import start_settings
    from tandem.plugins.ray import attach, registry, supervisor
    from tandem.sites.startup import check_files

    check_files(config, (party,), log)
    node = attach.start_node(party, join=join, config=config)
    try:
        node = replace(node, token=token, settings=start_settings(config, party))
        registry.register(node)
        log(f"node: {party} at {node.address}")
        attach.attach(node.address, config)
        attach.wait_for_node(node, config.cluster.start_timeout_s)
        if node_only:
            return node
        supervisor.start_party(party, config, log)
    except BaseException:
        _stop(node)
        raise
    log(f"party: {party} is ready")
    return node


def _print_hints(node: NodeInfo, config: Config, config_file: str | None) -> None:
    from tandem.plugins.ray import actors
    from tandem.plugins.ray.registry import token_file

    tandem, others = this_command(), [party for party in config.parties if party != node.party]
    missing = [party for party in others if actors.find_loss(node.address, party, config) is not None]
    if not missing:
        emit(f"Ask: {_ask_command(node, config, config_file)}")
        return
    option = ""
    if node.address.startswith("127."):
        emit("Other machines cannot reach this address; for them, start with --set link.host=ADDRESS.")
    elif node.is_head and node.token:
        emit(f"On another machine, first copy the cluster's token there: {token_file(node.party)}")
        tandem, option = "tandem", " --token-file FILE"
    join = f" --join {node.address}{option}" if option or not node.address.startswith("127.") else ""
    settings = f" --config {config_file}" if config_file and config.is_federated else ""
    for party in missing:
        what = "the other party" if len(others) == 1 else party
        emit(f"Start {what}: {tandem} up {party}{join}{settings}")
    emit(f"Then ask here: {_ask_command(node, config, config_file)}")


def _ask_command(node: NodeInfo, config: Config, config_file: str | None) -> str:
    """The command that asks this cluster from here; its address is left out where `tandem ask` finds it."""
    from tandem.plugins.ray import registry

    first = next(each for each in registry.running_nodes() if each.party in config.parties)
    option = "" if first.address == node.address else f" --address {node.address}"
    if config_file and config.is_federated:
        option += f" --config {config_file}"
    where = "" if config.is_federated else config.party(node.party).index
    question = example_question(where) or "QUESTION"
    return f'{this_command()} ask{option} "{question}"'


def down() -> int:
    """Stop what `tandem up` started on this machine."""
    from tandem.plugins.ray import registry

    with registry.locked():
        recorded = registry.recorded_nodes()
        if not recorded:
            raise ClusterError(
                f"Nothing was stopped: {state_folder()} names no running node that `tandem up` started here."
            )
        for node, is_running in sorted(recorded, key=lambda recorded: recorded[0].is_head):
            if is_running:
                _stop(node)
            else:
                registry.unregister(node.party)
            what = "is down" if is_running else "had ended before"
            emit(f"The {node.party} node (process {node.pid}) {what}.")
    return 0


def _stop(node: NodeInfo) -> None:
    from tandem.plugins.ray import attach, registry

    attach.stop_node(node)
    registry.unregister(node.party)


def this_command() -> str:
    """The command line of this installation's `tandem` from the current folder."""
    script = Path(sysconfig.get_path("scripts")) / "tandem"
    on_path = shutil.which("tandem")
    if on_path is not None and script.exists() and os.path.samefile(on_path, script):
        return "tandem"
    if script.exists():
        return shlex.quote(_from_here(script))
    return f"{shlex.quote(_from_here(Path(sys.executable)))} -m tandem"


def _from_here(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
