"""A cloud over sockets in this process, any of whose actors is lost and replaced among the others; no Ray.

The actors are the real ones with the bundled model. One is lost when its connections break and it falls silent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tandem import Config, Tandem
from tandem.actors.base import Runtime, SharedProcess, SiteActor
from tandem.engine.pieces import pack
from tandem.errors import QueryError
from tandem.events import TokenEvent
from tandem.protocol.routes import ROLES, ActorKind
from tandem.sites.port import Deployment
from tandem.sites.startup import ACTOR_CLASSES, LocalSite, join_actors, list_pieces, start_actors

QUESTIONS = ("Which game should Mira try?", "Why is the sky blue?")
OPTIONS: dict[str, Any] = {"only": "cloud", "seed": 12, "temperature": 1.0, "max_new_tokens": 24}
HEAVY: list[ActorKind] = ["retriever", "decoder"]
LIGHT: list[ActorKind] = [role for role in ROLES if role not in HEAVY]


@dataclass(kw_only=True)
class Cloud(Deployment):
    """A cloud alone, whose decoder and retriever have sockets of their own."""

    folder: Path
    actors: dict[str, SiteActor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.config = Config()
        self.sites = {"cloud": LocalSite("cloud", self.actors, self.loop.event_loop)}
        self.loop.run(self._start())

    async def _start(self) -> None:
        """The light actors share the draft queue's process, as they may on Ray."""
        self.runtime = Runtime(secret=b"s", directory=str(self.folder), config=self.config)
        self.make(*ROLES)
        self.described |= await start_actors({"cloud": self.actors}, self.config, lambda line: None)

    async def status(self, config: Config) -> dict[str, object]:
        return {}

    def make(self, *roles: str) -> None:
        if "draft_queue" in roles:
            classes = {role: ACTOR_CLASSES[role] for role in LIGHT}
            self.actors |= SharedProcess("cloud", self.runtime, classes).actors
        for role in HEAVY:
            if role in roles:
                self.actors[role] = ACTOR_CLASSES[role]("cloud", self.runtime)

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
                    await self.actors["draft_queue"].drop(f"cloud/{role}")  # type: ignore[attr-defined]
            await join_actors(self.actors, roles)

        self.loop.run(start())

    def close(self) -> None:
        self.loop.run(LocalSite("cloud", self.actors, self.loop.event_loop).stop())
        self.loop.close()


def answers(tandem: Tandem) -> list[tuple[int, ...]]:
    return [tandem.query(question, **OPTIONS).token_ids for question in QUESTIONS]


def frames_of_light_actors(cloud: Cloud) -> set[str]:
    """With whom they exchange frames."""
    return {name for role in LIGHT for name in cloud.loop.run(cloud.actors[role].statistics()).links}


@pytest.mark.parametrize("lost", [["retriever"], ["decoder"], LIGHT])
def test_whoever_is_lost_in_an_answer_is_replaced_among_the_others(tmp_path: Path, lost: list[str]) -> None:
    """What the others hold for a draft queue that is no more, they free."""
    cloud = Cloud(folder=tmp_path)
    tandem = Tandem(Config(), cloud)
    whole = answers(tandem)
    names = frames_of_light_actors(cloud)
    assert "cloud/decoder" in names
    assert names.isdisjoint(f"cloud/{role}" for role in LIGHT), "they share a process"
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
    assert answers(Tandem(Config(), cloud)) == whole
    assert [actor for role, actor in cloud.actors.items() if role not in lost] == kept
    stream.close()  # type: ignore[attr-defined]
    tandem.close()


@pytest.mark.parametrize("lost", [["decoder"], LIGHT])
def test_who_is_replaced_has_the_pieces_of_those_who_stay(tmp_path: Path, lost: list[str]) -> None:
    cloud = Cloud(folder=tmp_path)
    own = cloud.loop.run(cloud.actors["decoder"].call("vocabulary"))
    vocabularies = {"device": pack([b"zzz"]), "cloud": own}
    added = cloud.loop.run(list_pieces(cloud.actors, vocabularies))
    cloud.kill(*lost)
    cloud.replace(*lost)
    for role in ("decoder", "draft_queue"):
        assert cloud.loop.run(cloud.actors[role].call("shared")) == [vocabularies]
    assert added.items() <= cloud.loop.run(cloud.actors["decoder"].describe()).items()
    cloud.close()


def test_without_its_decoder_a_query_fails_with_one_sentence(tmp_path: Path) -> None:
    cloud = Cloud(folder=tmp_path)
    with Tandem(Config(), cloud) as tandem:
        cloud.kill("decoder")
        with pytest.raises(QueryError, match=r"^The cloud's decoder has stopped"):
            tandem.query(QUESTIONS[0], **OPTIONS)
