"""The data plane over Ray actor calls: the same frames, delivered by `deliver` of the receiving actor.

Frames of one event-loop turn travel in one call. Calls are not awaited and may arrive in any order, which the protocol
allows.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import ray

from tandem.transport.port import Endpoint, LinkCounters, OnConnected


class RayPlane:
    """All links of one actor."""

    def __init__(self, name: str, namespace: str, on_connected: OnConnected) -> None:
        self.name = name
        self.counters: dict[str, LinkCounters] = defaultdict(LinkCounters)
        self._namespace = namespace
        self._on_connected = on_connected
        self._methods: dict[str, Any] = {}
        self._waiting: dict[str, list[bytes]] = {}

    async def start(self) -> Endpoint:
        """Nothing to open: Ray finds actors by name."""
        return Endpoint(self.name)

    async def connect(self, endpoint: Endpoint) -> None:
        """Look the actor up."""
        self._look_up(endpoint.name)
        self._on_connected(endpoint.name)

    def send(self, to: str, frame: bytes) -> None:
        """Queue one frame; it leaves with the others of this event-loop turn."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        self._waiting.setdefault(to, []).append(frame)

    def is_connected(self, to: str) -> bool:
        """Whether Ray knows the actor. A dead one counts until Ray notices."""
        try:
            self._look_up(to)
        except ValueError:
            return False
        return True

    def renew(self, to: str) -> None:
        """Nothing to do: Ray manages its own connections."""

    async def close(self) -> None:
        """Forget all actors."""
        self._methods.clear()

    def _look_up(self, name: str) -> Any:
        if name not in self._methods:
            actor = ray.get_actor(name, namespace=self._namespace)
            self._methods[name] = actor.deliver.options(enable_task_events=False)
            self.counters[name].connections += 1
        return self._methods[name]

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for name, frames in waiting.items():
            counters = self.counters[name]
            try:
                self._look_up(name).remote(self.name, frames)
            except ValueError:  # no such actor now; the protocol resends
                counters.dropped_frames += len(frames)
                continue
            counters.sent_frames += len(frames)
            counters.sent_bytes += sum(map(len, frames))
            counters.writes += 1
