"""The counters that every actor reports."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorStatistics:
    """One actor's counters."""

    name: str  # "party/kind"
    pid: int
    cpu_s: float  # CPU time of the process so far; actors that share one report the same
    memory_bytes: int  # resident
    num_sessions: int
    num_malformed: int  # frames that could not be decoded
    imports_torch: bool
    tasks: tuple[str, ...]  # running asyncio tasks of the actor
    links: dict[str, dict[str, int]]  # per actor: LinkCounters
    extra: dict[str, float]


def resident_bytes() -> int:
    """Memory that this process holds."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
