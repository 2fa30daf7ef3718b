"""A cloud that is served, and devices that join it over TLS on loopback: the answers, what crosses, what goes wrong."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tandem import Config, Tandem
from tandem.actors.draft_queue import HostQueue
from tandem.corpora import WEIGHTS
from tandem.errors import ClusterError, Code, ConfigError, ProtocolError, QueryError
from tandem.events import DoneEvent, PeerEvent, TokenEvent
from tandem.messages import LinkFrame, Open, decode_link
from tandem.modes import SessionSpec
from tandem.plugins.torch.model import load_model
from tandem.sites import host
from tandem.sites.host import Address, ServedCloud, served
from tandem_lab.bundled import read_bundled_questions
from tests.unit.engine.followers import followers
from tests.unit.transport.conftest import until
from tests.waiting import wait_until

QUESTIONS = [asked.question for asked in read_bundled_questions()][:3]
WAIT = Config.load(None, ["link.on_peer_loss=wait"])
ANYWHERE = Address("127.0.0.1", 0)
ASKED: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 1.0, "placement": "cloud", "draft_rule": "algorithm1"},
    {"mode": "speculative", "temperature": 1.0},
)


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedCloud]:
    with served(WAIT, ANYWHERE, tmp_path_factory.mktemp("keys")) as running:
        yield running


@pytest.fixture(scope="module")
def phone(cloud: ServedCloud) -> Iterator[Tandem]:
    with Tandem.join(str(cloud.link_for("phone")), WAIT) as tandem:
        yield tandem


def test_answers_are_those_of_two_sides_in_one_process(rag: Tandem, phone: Tandem) -> None:
    for options in ASKED:
        for seed, question in enumerate(QUESTIONS[:2]):
            inline, over_link = (tandem.query(question, seed=seed, **options) for tandem in (rag, phone))
            assert over_link.token_ids == inline.token_ids
            assert not over_link.is_degraded


def test_two_devices_at_once_get_their_own_answers(rag: Tandem, cloud: ServedCloud, phone: Tandem) -> None:
    expected = [rag.query(question, seed=5).token_ids for question in QUESTIONS]
    with (
        Tandem.join(str(cloud.link_for("laptop")), WAIT) as laptop,
        ThreadPoolExecutor(6) as pool,
    ):
        asked = [(tandem, question) for tandem in (phone, laptop) for question in QUESTIONS]
        answers = list(pool.map(lambda pair: pair[0].query(pair[1], seed=5).token_ids, asked))
    assert answers == expected * 2
    (queue,) = [actor for actor in cloud.list_actors() if actor["name"] == "cloud/draft_queue"]
    assert queue["extra"]["num_foreign"] == 0


async def test_a_device_whose_grammar_costs_too_much_holds_no_other_device_up(
    cloud: ServedCloud, phone: Tandem, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(
        "llguidance", reason="answers that follow a grammar need llguidance (extra [grammar])"
    )
    from tandem.plugins.grammars import following

    hostile: dict[str, Any] = {"json_schema": {"type": "integer", "multipleOf": 19_999_999}}
    with await asyncio.to_thread(Tandem.join, str(cloud.link_for("tablet")), WAIT) as tablet:
        with monkeypatch.context() as patch:
            patch.setattr(following, "LIMITS", following.Limits(build_s=600.0, memory_mb=4_000))
            asking = [asyncio.create_task(tablet.aquery(QUESTIONS[0], grammar=hostile)) for _ in range(4)]
            await until(lambda: len(followers()) == 8, 120.0)  # of the device, and of the cloud
        for asked in ({}, {"grammar": {"regex": "(yes|no)"}}):
            assert (await phone.aquery(QUESTIONS[0], max_new_tokens=8, **asked)).token_ids  # type: ignore[arg-type]
        assert not any(task.done() for task in asking)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        await until(lambda: not followers(), 120.0)
        with pytest.raises(
            QueryError, match="The grammar of the answer takes more than 2 s of a processor"
        ) as refused:
            await tablet.aquery(QUESTIONS[0], grammar=hostile)
        assert (refused.value.code, refused.value.option) == (Code.OVER_LIMIT, "grammar")


def test_what_crosses_holds_no_document_and_no_setting_of_the_device(tmp_path: Path) -> None:
    """Every frame as the cloud reads it, after TLS; the question itself is the positive control."""
    heard: list[bytes] = []

    class Listening(HostQueue):
        def on_frames(self, source: str, frames: list[bytes]) -> None:
            heard.extend(frames)
            super().on_frames(source, frames)

    with (
        served(WAIT, ANYWHERE, tmp_path, actor_classes={"draft_queue": Listening}) as cloud,
        Tandem.join(str(cloud.link_for("phone")), WAIT) as phone,
    ):
        answer = phone.query(QUESTIONS[0], seed=7, device_filter={"source": "note-01-mira-games.md"})
    everything = b"".join(heard)
    assert QUESTIONS[0].encode() in everything
    own = [source for source in answer.sources if source.party == "device"]
    assert own
    for source in own:
        assert source.title is not None
        assert source.text is not None
        words = source.text.split()
        pieces = {" ".join(words[at : at + 4]) for at in range(len(words) - 3)}
        assert not [piece for piece in pieces if piece.encode() in everything]
        assert source.title.encode() not in everything
    assert str(Path.home()).encode() not in everything
    (opening,) = [frame.body for frame in map(decode_link, heard) if _opens(frame)]
    assert SessionSpec.from_json(opening.spec).device_filter == ""
    assert "note-01" not in opening.spec
    assert {(source.title, source.text) for source in answer.sources if source.party == "cloud"} == {
        (None, None)
    }


def _opens(frame: Any) -> bool:
    return isinstance(frame, LinkFrame) and isinstance(frame.body, Open)


def test_a_cloud_keeps_no_turns_of_its_devices(cloud: ServedCloud, phone: Tandem) -> None:
    """They would tell one device, by the time that an answer takes, what another has asked."""
    first = phone.query(QUESTIONS[0], seed=1)
    history: list[Any] = [
        {"role": "user", "content": QUESTIONS[0]},
        {"role": "assistant", "content": first.text},
    ]
    phone.query(QUESTIONS[1], seed=1, history=history)
    actors: list[Any] = [*cloud.list_actors(), *phone.status()["actors"]]
    kept = {each["name"]: each["extra"]["turn_bytes"] for each in actors if each["name"].endswith("/decoder")}
    assert kept["cloud/decoder"] == 0 < kept["device/decoder"]


def test_a_cloud_that_stops_and_comes_back(tmp_path: Path) -> None:
    """Tokens flow while it is away, the answer says from which step, and the next question finds it again."""
    config = Config.load(None, ["link.peer_loss_margin_s=0.2"])
    with contextlib.ExitStack() as stack:
        with served(config, ANYWHERE, tmp_path) as cloud:
            link, port = cloud.link_for("phone"), cloud.port
            phone = stack.enter_context(Tandem.join(str(link), config))
            assert not phone.query(QUESTIONS[0], seed=1, on_peer_loss="wait").is_degraded
            events = phone.stream(QUESTIONS[0], seed=1, max_new_tokens=12)
            seen = [next(event for event in events if isinstance(event, TokenEvent))]
        rest = list(events)
        seen += [event for event in rest if isinstance(event, TokenEvent)]
        assert [event.step for event in seen] == list(range(len(seen)))
        done = rest[-1]
        assert isinstance(done, DoneEvent)
        assert done.error is None
        if done.statistics.degraded_from is None:
            assert not [event for event in rest if isinstance(event, PeerEvent)], (
                "it ended before the cloud did"
            )
        assert phone.query(QUESTIONS[1], seed=1).is_degraded
        assert phone.status()["cluster"].endswith("(not connected now)")
        with served(config, Address("127.0.0.1", port), tmp_path):
            wait_until(lambda: not phone.query(QUESTIONS[1], seed=1).is_degraded)
            assert phone.status()["cluster"] == f"joined to 127.0.0.1:{port}"


def test_an_answer_is_of_one_version_of_the_clouds_model(tmp_path: Path) -> None:
    """It begins while the cloud is away, which comes back with an adapter: that serves the next question."""
    peft = pytest.importorskip("peft", reason="peft is not installed (extra [train])")
    base = load_model(str(WEIGHTS), device="cpu", dtype="float32")
    lora = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    peft.get_peft_model(base, lora).save_pretrained(tmp_path / "version-2")
    newer = Config.load(None, ["link.on_peer_loss=wait", f"cloud.model={tmp_path / 'version-2'}"])
    with contextlib.ExitStack() as stack:
        with served(WAIT, ANYWHERE, tmp_path / "keys") as cloud:
            link, port = cloud.link_for("phone"), cloud.port
            phone = stack.enter_context(Tandem.join(str(link), WAIT))
            before = phone.query(QUESTIONS[0], seed=1)
        waiting = stack.enter_context(ThreadPoolExecutor(1)).submit(phone.query, QUESTIONS[0], seed=1)
        with served(newer, Address("127.0.0.1", port), tmp_path / "keys"):
            with pytest.raises(
                QueryError, match="The cloud has other weights by now than those that this answer"
            ):
                waiting.result(timeout=60)
            after = phone.query(QUESTIONS[0], seed=1)
        assert not before.is_degraded
        assert not after.is_degraded


def test_a_device_that_is_revoked_is_disconnected_and_told(
    cloud: ServedCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "WATCH_S", 0.05)
    link = cloud.link_for("lost")
    with Tandem.join(str(link), Config.load(None, ["link.peer_loss_margin_s=0.2"])) as tandem:
        assert not tandem.query(QUESTIONS[0], seed=1, on_peer_loss="wait").is_degraded
        cloud.admission.devices.revoke("lost")
        revoked = f"The cloud at {link.address} has revoked this join link; ask its owner for a new one"
        wait_until(lambda: tandem.status()["cluster"].endswith(f"(not connected now: {revoked})"))
        answer = tandem.query(QUESTIONS[0], seed=1)
        assert answer.degraded_reason == f"From token 0 on the device answered without the cloud ({revoked})."
    with pytest.raises(ProtocolError, match="has revoked this join link"):
        Tandem.join(str(link), WAIT)


def test_a_cloud_that_never_came(cloud: ServedCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "FIRST_JOIN_S", 0.5)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        nowhere = dataclasses.replace(cloud.link_for("early"), port=probe.getsockname()[1])
    said: list[str] = []
    config = Config.load(None, ["link.peer_loss_margin_s=0.2"])
    with Tandem.join(str(nowhere), config, progress=said.append) as tandem:
        answer = tandem.query(QUESTIONS[0], seed=1)
        assert answer.is_degraded
        assert answer.statistics.degraded_from == 0
        assert answer.text
    assert any("No cloud answers at" in line and "the device answers by itself" in line for line in said)
    with pytest.raises(ClusterError, match=r"No cloud answers at 127\.0\.0\.1:"):
        Tandem.join(str(nowhere), Config.load(None, ["link.on_peer_loss=fail"]))


def test_mistakes_get_one_sentence(cloud: ServedCloud, phone: Tandem, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="looks like tandem://"):
        Tandem.join("https://example.org")
    with pytest.raises(ConfigError, match="there is no file"):
        Tandem.join(str(tmp_path / "nothing"))
    (tmp_path / "link").write_text(str(cloud.link_for("filed")))
    (tmp_path / "link").chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        Tandem.join(str(tmp_path / "link"))
    with pytest.raises(QueryError, match="which a join link does not reach"):
        phone.query(QUESTIONS[0], only="cloud")
    assert phone.query(QUESTIONS[0], only="device", seed=1).text
    other = Config.load(None, ["codec.name=top_k", "link.on_peer_loss=wait"])
    with pytest.raises(ProtocolError, match="must have the same codec"):
        Tandem.join(str(cloud.link_for("other")), other)
    with (
        pytest.raises(ClusterError, match=rf"cannot listen at 127\.0\.0\.1:{cloud.port}"),
        served(WAIT, Address("127.0.0.1", cloud.port), tmp_path / "keys"),
    ):
        pass
