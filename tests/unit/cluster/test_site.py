"""How actors are called: on their own event loop or from another, over Ray's handles; errors are Tandem's own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from ray.exceptions import RayActorError, RaySystemError

from tandem.actors.base import Runtime
from tandem.actors.retriever import ProfilerActor
from tandem.config.schema import Config
from tandem.errors import CallError, ClusterError, QueryError
from tandem.plugins.ray import actors
from tandem.plugins.ray.actors import RayActor, while_node_runs
from tandem.plugins.ray.bootstrap import RaySite
from tandem.sites.port import LoopThread
from tandem.sites.startup import LocalSite
from tandem.topology import Party


class Profiler(ProfilerActor):
    """With methods that fail, or never end."""

    def __init__(self) -> None:
        super().__init__(Party.DEVICE, Runtime(secret=b"", directory="", config=Config()))
        self.log: list[str] = []

    async def note(self, text: str) -> int:
        await asyncio.sleep(0)
        self.log.append(text)
        return len(self.log)

    async def refuse(self) -> None:
        raise QueryError("No.")

    async def break_down(self) -> None:
        raise TimeoutError("too late")

    async def wait(self) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.log.append("cancelled")
            raise


@pytest.mark.filterwarnings("error")
def test_calls_from_another_loop_and_after_the_end() -> None:
    actor, home = Profiler(), LoopThread()
    site = LocalSite(Party.DEVICE, {"profiler": actor}, home.event_loop)

    async def call_all() -> None:
        assert await site.call("profiler", "note", "a") == 1
        with pytest.raises(QueryError, match=r"^No\.$"):
            await site.call("profiler", "refuse")
        with pytest.raises(CallError, match="device's profiler failed on the call 'break_down' with Timeout"):
            await site.call("profiler", "break_down")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await site.call("profiler", "wait")
        await asyncio.sleep(0.05)
        assert actor.log == ["a", "cancelled"]

    async def outlive() -> None:
        call = asyncio.ensure_future(site.call("profiler", "wait"))
        await site.call("profiler", "note", "b")
        await asyncio.to_thread(home.close)
        with pytest.raises(CallError, match=r"^The device's site was closed during a call"):
            await call
        with pytest.raises(CallError, match=r"^The device's site is closed; start it again\.$"):
            await site.call("profiler", "note", "c")

    asyncio.run(call_all())
    asyncio.run(outlive())


class Reference:
    """What Ray gives for a call."""

    def __init__(self, outcome: Any) -> None:
        self.outcome = outcome

    def __await__(self) -> Any:
        yield from asyncio.sleep(0).__await__()
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


class RayHandle:
    """A handle of a Ray actor."""

    def __init__(self, outcome: Any) -> None:
        self.outcome = outcome

    @property
    def describe(self) -> RayHandle:
        return self

    embed = tokenizer_json = describe

    def remote(self, *values: Any) -> Reference:
        return Reference(self.outcome)


class Raised(RaySystemError):
    """As Ray wraps what an actor raised."""

    cause = QueryError("No.")


async def test_what_ray_raises_is_a_call_error_or_what_the_actor_raised() -> None:
    assert await RayActor(RayHandle({"a": 1})).call("describe") == {"a": 1}
    with pytest.raises(QueryError, match=r"^No\.$"):
        await RayActor(RayHandle(Raised("x"))).call("describe")
    lost = RayActorError("x")
    with pytest.raises(CallError) as caught:
        await RayActor(RayHandle(lost)).call("describe")
    assert caught.value.__cause__ is lost


async def test_a_party_that_has_lost_an_actor_is_found_again() -> None:
    """All of it: whoever replaces one actor replaces the others, too."""
    old = {"decoder": RayActor(RayHandle(RayActorError("x"))), "retriever": RayActor(RayHandle([[0.5]]))}
    new = {"decoder": RayActor(RayHandle("{}")), "retriever": RayActor(RayHandle([[1.0]]))}
    outcomes: list[Any] = [ClusterError("It is being started."), new]

    def find() -> Any:
        if isinstance(outcome := outcomes.pop(0), ClusterError):
            raise outcome
        return outcome

    site = RaySite(old, find)
    assert await site.embed(["a"]) == [[0.5]]
    with pytest.raises(CallError):
        await site.call("decoder", "describe")
    with pytest.raises(CallError, match=r"^It is being started\.$"):
        await site.embed(["a"])
    assert (await site.call("decoder", "describe"), await site.embed(["a"])) == ("{}", [[1.0]])
    assert not outcomes


async def test_a_call_ends_when_this_machines_node_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long call goes on while the node is there, and is one sentence afterwards."""
    looks = iter([True, True, False])
    monkeypatch.setattr(actors, "LOOK_AFTER_S", 0.01)
    monkeypatch.setattr(actors, "is_node_there", lambda: next(looks))
    call = asyncio.get_running_loop().create_future()
    with pytest.raises(
        CallError, match=r"^This machine's Ray node and its actors have ended; run `tandem down`"
    ):
        await while_node_runs(call)
    assert call.cancelled()
    assert next(looks, None) is None
