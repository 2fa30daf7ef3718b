"""A cloud with two decoders, over sockets in this process: answers, pins, and the loss of any actor; no Ray.

The actors are the real ones with the bundled model. One is lost when its connections break and it falls silent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tandem import Config, Tandem
from tandem.actors.base import Runtime, SharedProcess, SiteActor
from tandem.config.schema import PartyConfig
from tandem.errors import ClusterError, ConfigError, QueryError
from tandem.events import Answer, DoneEvent, TokenEvent
from tandem.protocol.outbox import ROLES, ActorKind, kind_of
from tandem.sites.local import ACTOR_CLASSES, LocalSite
from tandem.sites.port import Deployment
from tandem.sites.startup import join_actors, start_actors
from tandem.system.loop_thread import LoopThread
from tandem.transport.memory import MemoryNetwork

QUESTIONS = ("Which game should Mira try?", "Why is the sky blue?", "Who wrote it?", "What is a comet?")
OPTIONS: dict[str, Any] = {"only": "cloud", "seed": 12, "temperature": 1.0, "max_new_tokens": 24}
KILLED_AT = 4
LIGHT: list[ActorKind] = [role for role in ROLES if role not in ("decoder", "retriever")]


@dataclass(kw_only=True)
class Cloud(Deployment):
    """A cloud alone, each of whose decoders is an actor with sockets of its own."""

    folder: Path
    num_decoders: int = 2
    actors: dict[str, SiteActor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.config = Config.load(None, [f"cloud.num_decoders={self.num_decoders}"])
        self.sites = {"cloud": LocalSite("cloud", self.actors, self.loop.event_loop)}
        self.loop.run(self._start())

    async def _start(self) -> None:
        """The light actors share the draft queue's process, as they may on Ray."""
        self.runtime = Runtime(secret=b"s", directory=str(self.folder), config=self.config)
        self.make(*LIGHT, "retriever", *PartyConfig(num_decoders=self.num_decoders).decoder_roles)
        self.described |= await start_actors({"cloud": self.actors}, self.config, lambda line: None)

    async def status(self, config: Config) -> dict[str, object]:
        return {}

    def make(self, *roles: str) -> None:
        if "draft_queue" in roles:
            classes = {role: ACTOR_CLASSES[role] for role in LIGHT}
            self.actors |= SharedProcess("cloud", self.runtime, classes).actors
        if "retriever" in roles:
            self.actors["retriever"] = ACTOR_CLASSES["retriever"]("cloud", self.runtime)
        for role in [role for role in roles if kind_of(role) == "decoder"]:
            self.actors[role] = ACTOR_CLASSES["decoder"]("cloud", replace(self.runtime, role=role))

    def kill(self, *roles: str) -> None:
        """Nothing of them is left, and nothing was said."""
        for role in roles:
            self.loop.run(self.actors.pop(role).close())

    def replace(self, *roles: str) -> None:
        """Start actors again, as the supervisor does."""

        async def start() -> None:
            self.make(*roles)
            if "draft_queue" not in roles:
                for role in roles:
                    await self.queue.drop(f"cloud/{role}")
            await join_actors(self.actors, roles)

        self.loop.run(start())

    def statistics(self, role: str) -> Any:
        return self.loop.run(self.actors[role].statistics())

    def served(self) -> dict[str, float]:
        """Forward passes of each decoder."""
        return {
            role: self.statistics(role).extra["num_forwards"] for role in self.actors if "decoder" in role
        }

    @property
    def queue(self) -> Any:
        return self.actors["draft_queue"]

    def close(self) -> None:
        self.loop.run(LocalSite("cloud", self.actors, self.loop.event_loop).stop())
        self.loop.close()


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    deployment = Cloud(folder=tmp_path)
    yield deployment
    deployment.close()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[Answer]:
    """The answers of a cloud with one decoder."""
    with Tandem(Config(), Cloud(folder=tmp_path_factory.mktemp("alone"), num_decoders=1)) as tandem:
        return [tandem.query(question, **OPTIONS) for question in QUESTIONS]


def ask_all(tandem: Tandem) -> list[Answer]:
    async def ask() -> list[Answer]:
        return list(await asyncio.gather(*(tandem.aquery(question, **OPTIONS) for question in QUESTIONS)))

    return asyncio.run(ask())


def tokens(answers: list[Answer]) -> list[tuple[int, ...]]:
    return [answer.token_ids for answer in answers]


def test_two_decoders_share_the_queries_and_answer_as_one(cloud: Cloud, alone: list[Answer]) -> None:
    assert tokens(ask_all(Tandem(Config(), cloud))) == tokens(alone)
    assert all(count > 0 for count in cloud.served().values())


@pytest.mark.parametrize("role", ["decoder", "decoder-1"])
def test_a_lost_decoder_changes_no_token_and_comes_back(cloud: Cloud, alone: list[Answer], role: str) -> None:
    """Two queries of its own are in the middle of their answers when it dies."""
    tandem = Tandem(Config(), cloud)
    num_moved = before = 0
    while (
        num_moved - before < 2
    ):  # on a busy machine some have ended before this process sees that all have begun
        before = num_moved
        ask_until_killed(tandem, cloud, role, tokens(alone))
        num_moved = cloud.statistics("draft_queue").extra["num_moved"]
        cloud.replace(role)
    assert tokens(ask_all(tandem)) == tokens(alone)
    assert cloud.served()[role] > 0, "it has sessions again"


def ask_until_killed(tandem: Tandem, cloud: Cloud, role: str, wanted: list[tuple[int, ...]]) -> None:
    """Ask all questions, and kill that decoder once all answers have begun; no token is another for it."""
    ended: list[DoneEvent] = []
    seen: dict[str, list[int]] = {question: [] for question in QUESTIONS}

    async def ask(question: str) -> None:
        async for event in tandem.astream(question, **OPTIONS):
            if isinstance(event, TokenEvent):
                assert event.step == len(seen[question]), "none is lost, none comes twice"
                seen[question].append(event.token)
                if role in cloud.actors and all(len(known) >= KILLED_AT for known in seen.values()):
                    await asyncio.to_thread(cloud.kill, role)
            elif isinstance(event, DoneEvent):
                ended.append(event)

    async def ask_them() -> None:
        await asyncio.gather(*map(ask, QUESTIONS))

    asyncio.run(ask_them())
    assert [tuple(known) for known in seen.values()] == wanted
    assert {event.statistics.degraded_from for event in ended} == {None}


@pytest.mark.parametrize("lost", [["retriever"], ["decoder"], LIGHT, ["retriever", *LIGHT]])
@pytest.mark.parametrize("num_decoders", [1, 2])
def test_whoever_is_lost_in_an_answer_is_replaced_among_the_others(
    tmp_path: Path, alone: list[Answer], num_decoders: int, lost: list[str]
) -> None:
    """What the others hold for a draft queue that is no more, they free."""
    cloud = Cloud(folder=tmp_path, num_decoders=num_decoders)
    tandem = Tandem(Config(), cloud)
    stream = tandem.stream(QUESTIONS[0], **OPTIONS)
    for event in stream:
        if isinstance(event, TokenEvent) and event.step == 2:
            break
    kept = [actor for role, actor in cloud.actors.items() if role not in lost]
    cloud.kill(*lost)
    cloud.replace(*lost)
    if "draft_queue" in lost:
        assert [cloud.loop.run(actor.statistics()).num_sessions for actor in kept] == [0] * len(kept)
    assert all(cloud.loop.run(actor.is_prepared()) for actor in cloud.actors.values())
    again = Tandem(Config(), cloud)
    assert tokens(ask_all(again)) == tokens(alone)
    assert [actor for role, actor in cloud.actors.items() if role not in lost] == kept
    stream.close()  # type: ignore[attr-defined]
    tandem.close()


def test_a_decoder_that_is_known_to_be_dead_gets_nothing(cloud: Cloud, alone: list[Answer]) -> None:
    """The connection to a machine that is gone may stay for minutes."""
    cloud.loop.run(cloud.queue.drop("cloud/decoder"))
    assert "cloud/decoder-1" in cloud.loop.run(cloud.queue.reached())
    assert "cloud/decoder" not in cloud.loop.run(cloud.queue.reached())
    assert tokens(ask_all(Tandem(Config(), cloud))) == tokens(alone)
    assert cloud.served()["decoder"] == 0


def test_without_any_decoder_a_query_fails_with_one_sentence(cloud: Cloud) -> None:
    tandem = Tandem(Config(), cloud)
    for role in ("decoder", "decoder-1"):
        cloud.kill(role)
    with pytest.raises(QueryError, match=r"^The cloud's decoder has stopped"):
        tandem.query(QUESTIONS[0], **OPTIONS)


def test_a_decoder_with_another_model_is_refused(cloud: Cloud) -> None:
    cloud.kill("decoder-1")
    drafter = replace(cloud.config, cloud=replace(cloud.config.cloud, model="bundled-drafter"))
    cloud.runtime = replace(cloud.runtime, config=drafter)
    with pytest.raises(
        ClusterError, match=r"^All decoders of a party must have the same model, decoder has "
    ):
        cloud.replace("decoder-1")
    assert "cloud/decoder-1" not in cloud.loop.run(cloud.queue.reached())


def test_a_site_in_one_process_has_one_decoder() -> None:
    loop = LoopThread()
    try:
        config = Config.load(None, ["cloud.num_decoders=2"])
        with pytest.raises(
            ConfigError, match=r"^The setting cloud.num_decoders is 2, but without a Ray cluster"
        ):
            LocalSite.create("cloud", config, MemoryNetwork().new_plane, loop.event_loop)
    finally:
        loop.close()
