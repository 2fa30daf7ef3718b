"""Ray's actors: how they are named, found, called and stopped, whether one has a process for itself or shares it.

A process is named after its actors: "device/decoder", or "device/draft_queue+aggregator+profiler+scheduler".
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import socket
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError

from tandem.errors import CallError, TandemError

LOOK_AFTER_S = 1.0
"""A call that takes so long looks whether this machine's node is there still, and then again after as long."""
NODE_ENDED = "This machine's Ray node and its actors have ended; run `tandem down`, then `tandem up` again."


@dataclass(frozen=True, slots=True)
class RayActor:
    """An actor on Ray, as an `ActorPort`: what Ray raises is the cause of a CallError."""

    process: Any  # Ray handle
    role: str = ""  # of one that shares the process, a SharedProcess

    def start(self, method: str, *arguments: Any) -> Any:
        """Start a call of any method; returns Ray's reference to the result. Raises RayError."""
        if self.role:
            return self.process.call.remote(self.role, method, *arguments)
        return getattr(self.process, method).remote(*arguments)

    async def call(self, method: str, *arguments: Any) -> Any:
        """What a method returns. Raises the actor's TandemError, or CallError if it is lost."""
        try:
            return await while_node_runs(self.start(method, *arguments))
        except RayError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, TandemError):
                raise cause from error
            kind = type(cause or error).__name__  # what it says may quote a document
            raise CallError(f"A call to an actor failed with {kind}; see Ray's logs.") from error


RayActors = Mapping[str, RayActor]
"""The actors of one party, by role."""


async def while_node_runs(reference: Awaitable[Any]) -> Any:
    """The result of a call. Raises CallError once this machine's node has ended; Ray would then end this process."""
    result = asyncio.ensure_future(reference)
    try:
        while not (await asyncio.wait([result], timeout=LOOK_AFTER_S))[0]:
            if not await asyncio.to_thread(is_node_there):
                raise CallError(NODE_ENDED)
        return await result
    finally:
        result.cancel()


def is_node_there() -> bool:
    """Whether the raylet through which this process takes part in a cluster listens."""
    path = raylet_socket()
    if not path:
        return True
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


def raylet_socket() -> str:
    """The socket at which this machine's raylet listens; empty if unknown."""
    with contextlib.suppress(ImportError, AttributeError):  # private to Ray; a test fails if it disappears
        return str(importlib.import_module("ray._private.worker").global_worker.node.raylet_socket_name)
    return ""


def process_name(party: str, roles: Sequence[str]) -> str:
    """Ray's name of the process of these actors."""
    return f"{party}/{'+'.join(roles)}"


def names_in(process: str) -> list[str]:
    """The actors of a process, "party/kind", by its name."""
    party, _, roles = process.partition("/")
    return [f"{party}/{role}" for role in roles.split("+")]


def list_processes(namespace: str) -> list[str]:
    """Ray's names of the processes with actors that live or start."""
    listed = ray.util.list_named_actors(all_namespaces=True)
    return [process["name"] for process in listed if process["namespace"] == namespace]


def find_actor(name: str, namespace: str) -> RayActor:
    """A running actor. Raises ValueError if there is none."""
    try:
        return RayActor(ray.get_actor(name, namespace=namespace))
    except ValueError:
        for process in list_processes(namespace):
            if name in names_in(process):
                return RayActor(ray.get_actor(process, namespace=namespace), name.partition("/")[2])
        raise


def kill_actors(actors: Iterable[RayActor]) -> None:
    """Stop the processes of actors at once."""
    for process in {actor.process for actor in actors}:
        with contextlib.suppress(RayError):
            ray.kill(process)
