"""Ray's actors: how they are named, found, called and stopped, whether one has a process for itself or shares it.

A process is named after its actors: "device/decoder", or "device/draft_queue+aggregator+profiler+scheduler".
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from tandem.actors.handles import Call, Handles
from tandem.errors import CallError, TandemError
from tandem.protocol.outbox import ActorKind

LOOK_AFTER_S = 1.0
"""A call that takes so long looks whether this machine's node is there still, and then again after as long."""

NODE_ENDED = "This machine's Ray node and its actors have ended; run `tandem down`, then `tandem up` again."

RayHandles = dict[str, Any]
"""Ray handles of one party's actors by role, or Members of a process that several share."""


@dataclass(frozen=True, slots=True)
class Method:
    """A method of an actor that shares its process; called like one of a Ray actor."""

    call: Any  # `SharedProcess.call` of a Ray handle
    role: ActorKind
    name: str

    def remote(self, *arguments: Any) -> Any:
        """Start the call; returns what Ray returns."""
        return self.call.remote(self.role, self.name, *arguments)

    def options(self, **options: Any) -> Method:
        """The same method under Ray's options for a call."""
        return Method(self.call.options(**options), self.role, self.name)


@dataclass(frozen=True, slots=True)
class Member:
    """An actor that shares its process; `member.method.remote(...)` as for a Ray actor."""

    process: Any  # Ray handle of a SharedProcess
    role: ActorKind

    def __getattr__(self, name: str) -> Method:
        if name.startswith("_"):
            raise AttributeError(name)
        return Method(self.process.call, self.role, name)


class RayActors:
    """The Ray handles of one party's actors, found again after one of them has died: it may have been replaced."""

    def __init__(
        self, handles: Mapping[str, Any], find: Callable[[], Mapping[str, Any]] | None = None
    ) -> None:
        """find: None where nobody replaces them."""
        self._handles, self._find = handles, find
        self._has_lost = False

    def __getitem__(self, role: str) -> Any:
        if self._has_lost and self._find is not None:
            try:
                self._handles = self._find()
            except TandemError as error:
                raise CallError(str(error)) from None
            self._has_lost = False
        return self._handles[role]

    def translate(self, error: RayError) -> TandemError:
        """What a call raises whose error was this; see `unwrap`."""
        self._has_lost = self._has_lost or isinstance(error, RayActorError)
        return unwrap(error)


class RayActor:
    """An actor behind a Ray handle or a Member; what Ray raises is a CallError with Ray's error as its cause."""

    def __init__(self, actors: RayActors, role: str) -> None:
        self._actors = actors
        self._role = role

    def __getattr__(self, name: str) -> RayMethod:
        if name.startswith("_"):
            raise AttributeError(name)
        return RayMethod(self._actors, self._role, name)


@dataclass(frozen=True, slots=True)
class RayMethod:
    """A method of a RayActor."""

    actors: RayActors
    role: str
    name: str

    def remote(self, *arguments: Any) -> Call:
        """Start a call."""
        try:
            reference = getattr(self.actors[self.role], self.name).remote(*arguments)
        except RayError as error:
            raise self.actors.translate(error) from error

        async def wait() -> Any:
            try:
                return await while_node_runs(reference)
            except RayError as error:
                raise self.actors.translate(error) from error

        return Call(wait)


async def while_node_runs(reference: Awaitable[Any]) -> Any:
    """The result of a call. Raises CallError where this machine's node has ended, and its actors with it.

    Ray itself waits a minute for another head, and then ends this process.
    """
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
    """Where this machine's raylet listens; empty if it cannot be told."""
    with contextlib.suppress(ImportError, AttributeError):  # private to Ray; a test fails if it disappears
        return str(importlib.import_module("ray._private.worker").global_worker.node.raylet_socket_name)
    return ""


def unwrap(error: RayError) -> TandemError:
    """The TandemError that an actor raised, or one that quotes Ray."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, TandemError):
        return cause
    kind = type(cause or error).__name__  # what it says may quote a document
    return CallError(f"A call to an actor failed with {kind}; see Ray's logs.")


def wrap(handles: Mapping[str, Any], find: Callable[[], Mapping[str, Any]] | None = None) -> Handles:
    """The actors of one party as everything but Ray's own part of the code sees them.

    find: gives the handles again once an actor has died; None: there are no others.
    """
    actors = RayActors(handles, find)
    return {role: RayActor(actors, role) for role in handles}


def process_name(party: str, roles: Sequence[str]) -> str:
    """How Ray knows the process of these actors."""
    return f"{party}/{'+'.join(roles)}"


def names_in(process: str) -> list[str]:
    """The actors of a process, "party/kind", by its name."""
    party, _, roles = process.partition("/")
    return [f"{party}/{role}" for role in roles.split("+")]


def find_actor(name: str, namespace: str) -> Any:
    """Ray handle of a running actor, or a Member. Raises ValueError if there is none."""
    try:
        return ray.get_actor(name, namespace=namespace)
    except ValueError:
        for known in ray.util.list_named_actors(all_namespaces=True):
            if known["namespace"] == namespace and name in names_in(known["name"]):
                process = ray.get_actor(known["name"], namespace=namespace)
                role: Any = name.partition("/")[2]
                return Member(process, role)
        raise


def node_address() -> str:
    """The address by which the other nodes know the one that this process is on."""
    own = ray.get_runtime_context().get_node_id()
    return next(str(node["NodeManagerAddress"]) for node in ray.nodes() if node["NodeID"] == own)


def kill_actors(handles: Iterable[Any]) -> None:
    """Stop the processes of actors at once."""
    for process in {handle.process if isinstance(handle, Member) else handle for handle in handles}:
        with contextlib.suppress(RayError):
            ray.kill(process)
