"""How an actor is called, wherever it runs: `await handle.method.remote(...)`.

Ray's actors are behind `tandem.actors.ray_handles`; here are those of a site that is one process. A call starts when it
is made, whether it is awaited or not, and comes back with the actor's result or the TandemError that the actor raised;
whatever else goes wrong is a CallError.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Protocol

from tandem.errors import CallError, TandemError

if TYPE_CHECKING:
    from tandem.actors.base import SiteActor


class Method(Protocol):
    """A method of an actor."""

    def remote(self, *arguments: Any) -> Awaitable[Any]:
        """Start a call."""


class ActorHandle(Protocol):
    """An actor as others see it: `handle.method.remote(...)`."""

    def __getattr__(self, name: str) -> Method: ...


Handles = dict[str, ActorHandle]
"""The actors of one party, by role; its decoders as in `tandem.actors.decoder_pool.decoder_roles`."""


class Call:
    """A call that is under way. Unlike a coroutine it may be dropped: it goes on without anybody who waits."""

    __slots__ = ("_wait",)

    def __init__(self, wait: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """wait: gives the result."""
        self._wait = wait

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._wait().__await__()


class LocalActor:
    """An actor of this process, called on the event loop that it lives on, from that loop or any other."""

    def __init__(self, actor: SiteActor, loop: asyncio.AbstractEventLoop) -> None:
        self._actor = actor
        self._loop = loop
        self._calls: set[asyncio.Future[Any]] = set()  # a loop keeps only weak references to its tasks

    def __getattr__(self, name: str) -> LocalMethod:
        if name.startswith("_"):
            raise AttributeError(name)
        return LocalMethod(self, name)

    def _start(self, method: str, arguments: tuple[Any, ...]) -> asyncio.Future[Any]:
        if self._loop.is_closed():
            raise CallError(f"{self._actor.place} is closed; start its site again.")
        work = getattr(self._actor, method)(*arguments)
        if asyncio.get_running_loop() is self._loop:
            call: asyncio.Future[Any] = self._loop.create_task(work)
        else:
            call = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
        self._calls.add(call)
        call.add_done_callback(self._finish)
        return call

    def _finish(self, call: asyncio.Future[Any]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()  # mark as retrieved: nobody may wait for it

    async def _wait(self, call: asyncio.Future[Any], method: str) -> Any:
        try:
            return await call
        except asyncio.CancelledError:
            if (
                call.cancelled() and not _is_cancelled()
            ):  # not the caller but the call was: the loop was stopped
                raise CallError(
                    f"{self._actor.place} was closed during a call; start its site again."
                ) from None
            raise
        except TandemError:
            raise
        except Exception as error:
            raise CallError(
                f"{self._actor.place} failed on the call {method!r} with {type(error).__name__}; see its log."
            ) from error


class LocalMethod:
    """A method of a LocalActor."""

    __slots__ = ("_actor", "_name")

    def __init__(self, actor: LocalActor, name: str) -> None:
        self._actor = actor
        self._name = name

    def remote(self, *arguments: Any) -> Call:
        """Start a call; for a running event loop only. Raises CallError if the actor's loop is closed."""
        call = self._actor._start(self._name, arguments)
        return Call(lambda: self._actor._wait(call, self._name))


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
