"""Which cluster is meant: the one that was named, that of the settings, or the one that `tandem up` started here."""

from __future__ import annotations

from collections.abc import Callable

from tandem.cluster import registry
from tandem.cluster.nodes import is_listening
from tandem.cluster.start_settings import explain_ignored
from tandem.config.schema import Config
from tandem.errors import ClusterError


def find_address(address: str | None, config: Config, progress: Callable[[str], None]) -> str:
    """The address of the cluster to use; an explicit one counts first, then `cluster.address`, then the registry.

    Raises ClusterError if there is none.
    """
    address = address or config.cluster.address or find_local(config, progress)
    if not address:
        raise ClusterError(
            "No address of a cluster was given, and none that `tandem up` started runs on this machine; start one with "
            "`tandem up`, or name one as HOST:PORT."
        )
    return address


def find_local(config: Config, progress: Callable[[str], None]) -> str | None:
    """The running cluster of a node that `tandem up` started here for one of the settings' parties, None if there is
    none.

    Says what was found, and which settings count for nothing there.
    """
    gone: set[str] = set()
    recorded = [each for each in registry.recorded_nodes() if each[0].party in config.parties]
    for entry, is_running in recorded:
        if is_running and entry.address not in gone and is_listening(entry.address):
            progress(f"cluster: {entry.address} is running here (tandem up {entry.party})")
            own = [
                (other.party, other.settings)
                for other, runs in recorded
                if runs and other.address == entry.address
            ]
            if ignored := explain_ignored(config, own):
                progress(ignored)
            return entry.address
        if entry.address not in gone:
            progress(
                f"cluster: {entry.address}, which `tandem up {entry.party}` started here, no longer answers; "
                "`tandem down` forgets it"
            )
        gone.add(entry.address)
    return None
