"""`tandem up`, `tandem down` and `tandem status`: this machine's nodes of a cluster.

`tandem.cluster.launch` starts and stops them; here is what a user sees of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tandem.cli.options import AsJson, ConfigFile, Overrides, PartyArgument, load_settings
from tandem.cli.output import StageLog, print_json
from tandem.errors import ClusterError
from tandem.paths import state_folder
from tandem.topology import Party

if TYPE_CHECKING:
    from tandem.cluster.registry import Entry
    from tandem.config import Config

Join = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="the running node to join (default: start a new cluster)"),
]
TokenFile = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="with --join: the cluster's token, copied from the other machine"),
]
ClusterAddress = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT", help="the cluster (default: the one that `tandem up` started or joined here)"
    ),
]


def up(
    party: PartyArgument,
    join: Join = None,
    token_file: TokenFile = None,
    config_file: ConfigFile = None,
    overrides: Overrides = None,
) -> int:
    """Start this machine's node of a cluster, as device or cloud, in the background."""
    if token_file is not None and join is None:
        raise typer.BadParameter("`tandem up --token-file` needs --join ADDRESS.")
    from tandem.cluster import credentials, registry

    log = StageLog()
    config = load_settings(config_file, overrides, log=log)
    with registry.locked():
        _refuse_second(party)
        token = credentials.require_token(join, token_file) if join else credentials.create_token()
        entry = _start(party, join, config, token, log)
    print(f"The {party} node is up at {entry.address}.")
    if join is None:
        _print_hints(entry)
    return 0


def _start(party: Party, join: str | None, config: Config, token: str | None, log: StageLog) -> Entry:
    """A running node with its party's actors; registered before they start, so that nothing can be lost track of.

    Raises TandemError; a half-started node is stopped.
    """
    from tandem.cluster import launch, registry

    launch.check_files(config, (party,))
    node = launch.start_node(party, join=join, config=config)
    try:
        entry = registry.Entry(party=party, node=asdict(node), token=token)
        registry.register(entry)
        log(f"node: {party} at {node.address}")
        launch.attach(node.address, config)
        launch.start_party(party, config, log)
    except BaseException:
        launch.stop_node(node)
        registry.unregister(party)
        raise
    log(f"party: {party} is ready")
    return entry


def _print_hints(entry: Entry) -> None:
    """What to type next, here and on the other machine."""
    from tandem.cluster.registry import token_file

    option = ""
    if entry.address.startswith("127."):
        print("Other machines cannot reach this address; for them, start with --set link.host=ADDRESS.")
    elif entry.token:
        print(f"On another machine, first copy the cluster's token there: {token_file(entry.party)}")
        option = " --token-file FILE"
    print(f"Start the other party: tandem up {entry.party.other} --join {entry.address}{option}")
    print(f"Then ask: tandem ask --address {entry.address} QUESTION")


def down() -> int:
    """Stop what `tandem up` started on this machine."""
    from tandem.cluster import registry

    with registry.locked():
        entries = registry.running_nodes()
        if not entries:
            raise ClusterError(
                f"Nothing was stopped: {state_folder()} names no running node that `tandem up` started here."
            )
        from tandem.cluster import launch
        from tandem.cluster.nodes import NodeInfo

        for entry in sorted(entries, key=lambda entry: entry.is_head):
            launch.stop_node(NodeInfo(**entry.node))
            registry.unregister(entry.party)
            print(f"The {entry.party} node (process {entry.pid}) is down.")
    return 0


def status(
    address: ClusterAddress = None,
    as_json: AsJson = False,
    config_file: ConfigFile = None,
    overrides: Overrides = None,
) -> int:
    """Show nodes, actors, models and indexes of a cluster."""
    from tandem.cluster import credentials

    config = load_settings(config_file, overrides)
    address = address or config.cluster.address or _registered_address()
    credentials.find_token(address)
    from tandem.client import Tandem

    with Tandem.connect(address, config) as tandem:
        state = tandem.status()
    if as_json:
        print_json(state)
    else:
        print("\n".join(_lines(state)))
    return 0


def _lines(value: Any, indent: str = "") -> Iterator[str]:
    """A nested value as indented lines, one leaf each."""
    is_mapping = isinstance(value, dict)
    items = value.items() if is_mapping else ((_label(i, item), item) for i, item in enumerate(value))
    for key, item in items:
        has_children = isinstance(item, list | tuple) and any(isinstance(child, dict) for child in item)
        if isinstance(item, dict) or has_children:
            yield f"{indent}{key}"
            yield from _lines(item, indent + "  ")
        else:
            yield f"{indent}{key}: {_leaf(item)}"


def _label(index: int, item: Any) -> str:
    """What to call an item of a list."""
    name = item.get("name") if isinstance(item, dict) else None
    return str(name or index + 1)


def _leaf(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(_leaf, value)) or "-"
    return "-" if value in (None, "") else str(value)


def _refuse_second(party: Party) -> None:
    """A machine has at most one node of each party that `tandem up` started."""
    from tandem.cluster import registry

    for entry in registry.running_nodes():
        if entry.party is party:
            raise ClusterError(
                f"The {party} node is already running at {entry.address} (process {entry.pid}); "
                "stop it with `tandem down` first."
            )


def _registered_address() -> str:
    """Where the cluster is whose node was started here."""
    from tandem.cluster import registry

    for entry in registry.running_nodes():
        return entry.address
    raise ClusterError(
        "No cluster's address was given, and `tandem up` started none here; give --address HOST:PORT."
    )
