"""Opens a pcap file and tells what is wrong with one in a sentence. Needs dpkt (the extra `lab`).

Knows the file; what its packets hold is read by `tandem_lab.netlab.packets` and `tandem_lab.netlab.traffic`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

from tandem.errors import install_line
from tandem_lab.errors import NetLabError


def check_dpkt() -> None:
    """Raises NetLabError without dpkt: before anything is captured that could not be read then."""
    if find_spec("dpkt") is None:
        raise NetLabError(f"Reading packets needs dpkt, which is not installed; run `{install_line('lab')}`.")


@contextlib.contextmanager
def reading(path: Path) -> Iterator[Iterable[tuple[float, bytes]]]:
    """Time and bytes of each packet. Raises NetLabError without dpkt, or if the file, or a packet that the block looks
    into with dpkt, cannot be read.
    """
    check_dpkt()
    import dpkt  # type: ignore[import-untyped, unused-ignore]

    try:
        with path.open("rb") as file:
            yield dpkt.pcap.Reader(file)
    except (OSError, ValueError, dpkt.Error) as error:
        raise NetLabError(
            f"Captured packets stand in a pcap file, but {path} cannot be read: {error}"
        ) from error
