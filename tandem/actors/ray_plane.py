"""The data plane over Ray actor calls: the same frames, delivered by `deliver` of the receiving actor.

Frames of one turn travel in one call. Calls may arrive in any order, which the protocol allows. One call to
each actor at a time is watched, so that an actor that died is noticed with the next frame to it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

from ray.exceptions import RayActorError

from tandem.actors.ray_handles import find_actor
from tandem.transport.port import Endpoint, LinkCounters, OnConnected, OnLost


class RayPlane:
    """All links of one actor."""

    def __init__(self, name: str, namespace: str, on_connected: OnConnected, on_lost: OnLost) -> None:
        self.name = name
        self.counters: dict[str, LinkCounters] = defaultdict(LinkCounters)
        self._namespace = namespace
        self._on_connected = on_connected
        self._on_lost = on_lost
        self._watched: dict[str, asyncio.Task[None]] = {}
        self._methods: dict[str, Any] = {}
        self._waiting: dict[str, list[bytes]] = {}

    async def start(self) -> Endpoint:
        """Nothing to open: Ray finds actors by name."""
        return Endpoint(self.name)

    async def connect(self, endpoint: Endpoint) -> None:
        """Look the actor up, perhaps another one of that name than before."""
        self._methods.pop(endpoint.name, None)
        self._look_up(endpoint.name)
        self._on_connected(endpoint.name)

    def send(self, to: str, frame: bytes) -> None:
        """Queue one frame; it leaves with the next `flush`."""
        self._waiting.setdefault(to, []).append(frame)

    def flush(self) -> None:
        """Call `deliver` of every actor that frames wait for."""
        waiting, self._waiting = self._waiting, {}
        for name, frames in waiting.items():
            counters = self.counters[name]
            try:
                call = self._look_up(name).remote(self.name, frames)
            except ValueError:  # no such actor now; the protocol resends
                counters.dropped_frames += len(frames)
                continue
            if name not in self._watched:
                self._watched[name] = asyncio.get_running_loop().create_task(self._watch(name, call))
            counters.sent_frames += len(frames)
            counters.sent_bytes += sum(map(len, frames))
            counters.writes += 1

    def is_connected(self, to: str) -> bool:
        """Whether Ray knows the actor. A dead one counts until Ray notices."""
        try:
            self._look_up(to)
        except ValueError:
            return False
        return True

    def refusal_of(self, to: str) -> str | None:
        """Nobody refuses an actor of the cluster."""
        return None

    def renew(self, to: str) -> None:
        """Nothing to do: Ray manages its own connections."""

    async def close(self) -> None:
        """Forget all actors."""
        for task in self._watched.values():
            task.cancel()
        await asyncio.gather(*self._watched.values(), return_exceptions=True)
        self._watched.clear()
        self._methods.clear()

    def _look_up(self, name: str) -> Any:
        if name not in self._methods:
            actor = find_actor(name, self._namespace)
            self._methods[name] = actor.deliver.options(enable_task_events=False)
            self.counters[name].connections += 1
        return self._methods[name]

    async def _watch(self, name: str, call: Any) -> None:
        """Wait for one call; if its actor has died, forget it and report the loss."""
        try:
            await call
        except RayActorError:
            self._methods.pop(name, None)
            self._on_lost(name)
        finally:
            self._watched.pop(name, None)
