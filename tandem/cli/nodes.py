"""`tandem up`, `tandem down` and `tandem status`: this machine's nodes of a cluster.

Starting and stopping itself is the part of `tandem.actors.launch`; here is what a person sees of it.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from tandem.cli import access, notes
from tandem.cli.notes import Note
from tandem.cli.terminal import Progress, print_json, settings
from tandem.config import Config
from tandem.errors import ClusterError
from tandem.paths import state_folder
from tandem.topology import Party


def up(args: Namespace) -> int:
    """Starts a node and its side, in the background. Raises TandemError; a half-started node is stopped."""
    role, join = Party(args.role), args.join
    progress = Progress()
    config = settings(args, progress=progress)
    with notes.locked():
        _refuse_second(role)
        token = access.for_cluster(join, is_needed=True) if join else access.for_new_cluster()
        note = _started(role, join, config, token, progress)
    print(f"The {role} node is up at {note.address}.")
    if join is None:
        _print_hints(note)
    return 0


def _started(role: Party, join: str | None, config: Config, token: str | None, progress: Progress) -> Note:
    """A running node with its side's actors; noted before they start, so that nothing can be lost track of."""
    from tandem.actors import launch

    launch.check_files(config, (role,))
    info = launch.start_node(role, join=join, config=config)
    try:
        note = Note(role=role, node=asdict(info), token=token)
        notes.write(note)
        progress(f"node: {role} at {info.address}")
        launch.attach(info.address, config)
        launch.start_party(role, config, progress)
    except BaseException:
        launch.stop_node(info)
        notes.forget(role)
        raise
    progress(f"side: {role} is ready")
    return note


def _print_hints(note: Note) -> None:
    """What to type next, here and on the other machine."""
    secret = f"RAY_AUTH_TOKEN={note.token} " if note.token else ""
    if note.address.startswith("127."):
        print(
            "Other machines cannot reach this address; for them, start it with --set link.host=ADDRESS of this machine."
        )
    print(f"Start the other side: {secret}tandem up {note.role.other} --join {note.address}")
    print(f"Then ask: tandem ask --address {note.address} QUESTION")


def down(_args: Namespace) -> int:
    """Stops every node that `tandem up` started here. Raises ClusterError if there is none."""
    with notes.locked():
        found = notes.running()
        if not found:
            raise ClusterError(
                f"`tandem down` stops what `tandem up` started here, but {state_folder()} names nothing that runs; "
                "nothing was stopped."
            )
        from tandem.actors import launch
        from tandem.cluster.nodes import NodeInfo

        for note in sorted(found, key=_is_head):
            launch.stop_node(NodeInfo(**note.node))
            notes.forget(note.role)
            print(f"The {note.role} node (process {note.pid}) is down.")
    return 0


def _is_head(note: Note) -> bool:
    """Whether a node holds its cluster together, so that it has to go last."""
    return bool(note.node.get("directory"))


def status(args: Namespace) -> int:
    """Shows a running cluster. Raises ClusterError if there is none."""
    config = settings(args)
    address = args.address or config.cluster.address or _noted_address()
    access.for_cluster(address)
    from tandem.client import Tandem

    with Tandem.connect(address, config) as tandem:
        state = tandem.status()
    if args.json:
        print_json(state)
    else:
        print("\n".join(_lines(state)))
    return 0


def _lines(value: Any, indent: str = "") -> Iterator[str]:
    """A nested value as indented lines, one leaf each."""
    items = (
        value.items()
        if isinstance(value, dict)
        else ((_label(i, item), item) for i, item in enumerate(value))
    )
    for key, item in items:
        if isinstance(item, dict) or (
            isinstance(item, list | tuple) and any(isinstance(i, dict) for i in item)
        ):
            yield f"{indent}{key}"
            yield from _lines(item, indent + "  ")
        else:
            yield f"{indent}{key}: {_leaf(item)}"


def _label(index: int, item: Any) -> str:
    """What to call an item of a list."""
    named = item.get("name") if isinstance(item, dict) else None
    return str(named or index + 1)


def _leaf(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(_leaf, value)) or "-"
    return "-" if value in (None, "") else str(value)


def _refuse_second(role: Party) -> None:
    """A machine has at most one node of each role that `tandem up` started."""
    for note in notes.running():
        if note.role is role:
            raise ClusterError(
                f"A machine runs one {role} node at a time, but one runs already at {note.address} "
                f"(process {note.pid}); stop it with `tandem down` first."
            )


def _noted_address() -> str:
    """Where the cluster is whose node was started here."""
    for note in notes.running():
        return note.address
    raise ClusterError(
        "A cluster's status needs its address, but none was given and `tandem up` started none here; "
        "give --address HOST:PORT."
    )
