"""What leaves the device, by kind: the kinds add up to what the link counts, and each is what it says."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tandem import Config, QueryError, Tandem
from tandem.actors.tally import KINDS, Tally, listening_queue
from tandem.cli import main
from tandem.client import request
from tandem.engine.privacy import Ledger, ledger_path
from tandem.joining.handshakes import hello_of, new_instance
from tandem.messages import LinkFrame, Logprobs, Open, Tail, Verdict, Vote, encode
from tandem.sites.host import Address, served
from tandem.transport.port import join_frames

QUESTION = "Which game should Mira try?"
WAIT = ["link.on_peer_loss=wait"]
COUPLED = "decoding.draft_rule=coupled"
EVERYBODY = "whoever sees all that left the device, the cloud included"
NO_DOCUMENT = {"device_filter": {"source": "none"}}


def asked(settings: list[str], **options: Any) -> tuple[Tally, dict[str, int], list[LinkFrame]]:
    """What was counted, what the link counted, and the frames."""
    tally, frames = Tally(), list[LinkFrame]()

    def listen(frame: LinkFrame, encoded: bytes) -> None:
        tally.add(frame, encoded)
        frames.append(frame)

    classes: Any = {"draft_queue": listening_queue("device", listen)}
    with Tandem.launch(Config.load(None, settings), runtime="inline", actor_classes=classes) as tandem:
        tandem.query(QUESTION, seed=7, **options)
        (queue,) = [each for each in tandem.status()["actors"] if each["name"] == "device/draft_queue"]
    counters: dict[str, int] = queue["links"]["cloud/draft_queue"]
    return tally, counters, frames


@pytest.mark.parametrize(
    ("settings", "present", "absent"),
    [
        ([], {"question", "drafts", "race lists", "document weights"}, {"distributions", "filter"}),
        (["codec.name=top_p"], {"distributions", "document weights"}, {"race lists"}),
        (["decoding.placement=device"], {"committed tokens"}, {"race lists", "distributions"}),
        # a cloud that goes on by itself may be ready before the first draft
        (
            ["decoding.mode=speculative", "decoding.pacing=pipelined"],
            {"drafts"},
            {"race lists", "distributions", "document weights"},
        ),
    ],
)
def test_the_kinds_add_up_to_what_the_link_counts(
    settings: list[str], present: set[str], absent: set[str]
) -> None:
    tally, counters, frames = asked([*WAIT, *settings], cloud_filter=None)
    assert counters["dropped_frames"] == 0
    assert tally.num_frames == counters["sent_frames"] == len(frames)
    assert tally.total_bytes == counters["sent_bytes"]
    assert present <= set(tally.counts) <= set(KINDS)
    assert not absent & set(tally.counts)
    assert tally.num_bytes["question"] % len(QUESTION.encode()) == 0
    payloads = [body.payloads for body in (frame.body for frame in frames) if isinstance(body, Vote)]
    counted = tally.num_bytes.get("race lists", 0) + tally.num_bytes.get("distributions", 0)
    assert counted == sum(len(payload) for each in payloads for payload in each)


def test_log_probabilities_are_a_kind_of_their_own() -> None:
    """Of a party that decides, with the ids of tokens that may never be committed."""
    known = Logprobs(logprob=-0.5, top_ids=(7, 300), top_logprobs=(-0.5, -2.0))
    tail = Tail(logprobs=(known, known))
    body = Verdict(step=0, tokens=(7, 7), accepted=(3,), acceptance=(), next_decider=1, tail=(tail,))
    frame = LinkFrame(
        session=1, view=0, committed=2, committed_digest=bytes(8), stamp=1, echo=0, held_us=0, body=body
    )
    tally = Tally()
    tally.add(frame, encode(frame))
    assert (tally.counts["log probabilities"], tally.num_bytes["log probabilities"]) == (
        2,
        2 * len(encode(known)),
    )
    assert (tally.counts["committed tokens"], tally.num_bytes["committed tokens"]) == (2, 2)
    assert tally.total_bytes == len(join_frames([encode(frame)]))


def test_a_filter_is_named_and_counted() -> None:
    tally, counters, frames = asked(
        WAIT, cloud_filter={"source": "puzzles.md"}, device_filter={"source": "x"}
    )
    (opening, *_) = [frame.body for frame in frames if isinstance(frame.body, Open)]
    assert "puzzles.md" in opening.spec
    assert tally.num_bytes["filter"] == tally.counts["filter"] * len(json.dumps({"source": "puzzles.md"}))
    assert tally.total_bytes == counters["sent_bytes"]


def test_over_a_join_link_with_the_handshake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with served(Config.load(None, WAIT), Address("127.0.0.1", 0), tmp_path) as cloud:
        link = cloud.link_for("phone")
        assert main(["audit", QUESTION, "--seed", "7", "--join", str(link), "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        (queue,) = [actor for actor in cloud.status() if actor["name"] == "cloud/draft_queue"]
    hello = len(join_frames([hello_of(link, new_instance())]))
    assert shown["kinds"]["handshake"] == {"count": 1, "bytes": hello}
    assert shown["total_bytes"] == sum(kind["bytes"] for kind in shown["kinds"].values())
    assert shown["total_bytes"] - hello == queue["links"]["@phone/draft_queue"]["received_bytes"]


def test_a_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", QUESTION, "--seed", "7", "--mode", "speculative"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("Left the device for an answer of ")
    assert any(line.startswith("question                    1        27  the question") for line in shown)
    (nothing,) = [line for line in shown if line.startswith("Nothing of: handshake, filter, ")]
    assert "race lists, distributions, document weights" in nothing  # and drafts, where the cloud was quicker


def weights_of(privacy: float, **options: Any) -> dict[bytes, float]:
    """The log weight that was sent with each vote, by what it follows."""
    _, _, frames = asked([*WAIT, f"device.privacy={privacy}"], **options)
    votes = [frame.body for frame in frames if isinstance(frame.body, Vote)]
    return {vote.digest: vote.log_weights[0] for vote in votes if vote.log_weights}


@pytest.mark.parametrize("privacy", [1e-3, 0.0])
def test_private_weights_are_those_without_documents(
    privacy: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """To the bit, whatever the documents say, wherever two answers begin alike; without the setting they are not."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(
        request, "secrets", SimpleNamespace(randbits=lambda bits: 1)
    )  # digests name the session
    with_documents, without = weights_of(privacy), weights_of(privacy, **NO_DOCUMENT)
    common = with_documents.keys() & without.keys()
    assert len(common) > (4 if privacy else 0)
    assert all(with_documents[digest] == without[digest] for digest in common) == (privacy > 0)


@pytest.mark.parametrize(
    ("rule", "observer"),
    [
        (
            ["--set", COUPLED, "--placement", "device"],
            "readers of the answers who do not know the seeds, so not for the cloud",
        ),
        (["--set", COUPLED, "--mode", "speculative"], EVERYBODY),
        (["--set", "decoding.draft_rule=lottery"], EVERYBODY),
    ],
)
def test_the_budget_is_shown(
    rule: list[str],
    observer: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    bounded = ["audit", QUESTION, "--seed", "7", "--set", "device.privacy=2"]
    assert main([*bounded, *rule, "--set", "device.privacy_budget=90", "--temperature", "1"]) == 0
    bound, spent, promise = capsys.readouterr().out.splitlines()[-3:]
    assert bound == "Privacy: no log probability differs by more than 2 nats from that without documents."
    number = r"[\d.e+-]+"
    assert re.fullmatch(
        rf"Spent so far: {number} nats by \d+ tokens over bundled; {number} of 90 nats left\.", spent
    )
    assert promise == f"The count holds for {observer}."
    assert main([*bounded, "--temperature", "0", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["privacy"]
    assert (shown["bound"], shown["budget"], shown["left"]) == (2, None, None)
    assert f"Spent so far: {shown['spent']:.4g} nats by {shown['num_draws']:,} tokens" in spent  # none at 0
    assert 0 < shown["spent"] <= shown["num_draws"] * math.log(2 * math.cosh(2) - 1)


def test_a_budget_that_is_used_up_leaves_what_is_without_documents(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    settings = ["device.privacy=50", "sampling.temperature=1.0", COUPLED]
    for budget in ("1e-9", "0"):
        config = Config.load(None, [*settings, f"device.privacy_budget={budget}"])
        with Tandem.launch(config, runtime="inline") as tandem:
            texts = [tandem.query(QUESTION, seed=7, **options).text for options in ({}, NO_DOCUMENT)]
        assert (texts[0] == texts[1]) == (budget != "0")
        assert (Ledger(ledger_path(), "bundled").spent().nats <= 1e-9) == (budget != "0")


@pytest.mark.nightly("two whole sites; that only the cloud's draw counts is tested for every rule")
def test_private_noise_leaves_speculative_answers_as_they_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The cloud decides with the noise of the seed, whatever the device draws with its own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    settings = [*WAIT, "decoding.mode=speculative", "decoding.pacing=pipelined", "sampling.temperature=1.0"]
    texts = []
    for privacy in (0.0, 50.0):
        config = Config.load(None, [*settings, f"device.privacy={privacy}"])
        with Tandem.launch(config, runtime="inline") as tandem:
            texts.append([tandem.query(QUESTION, seed=seed).text for seed in range(6)])
    assert texts[0] == texts[1]


def test_a_query_that_no_budget_can_cover_fails_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    settings = ["device.privacy=1", "device.privacy_budget=5", "sampling.temperature=1.0"]
    with Tandem.launch(Config.load(None, settings), runtime="inline") as tandem:
        with pytest.raises(QueryError, match=r"budget \(5 nats\) needs a temperature above 0"):
            tandem.query(QUESTION, temperature=0)
        with pytest.raises(QueryError, match="a codec cuts its distributions off"):
            tandem.query(QUESTION, mode="speculative", draft_rule="rejection")
        assert tandem.query(QUESTION).tokens


def test_federated_mode_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    settings = tmp_path / "three.toml"
    settings.write_text(
        '[decoding]\nmode = "federated"\n[workers.one]\nnum_documents = 0\n[workers.two]\nnum_documents = 0\n'
    )
    assert main(["audit", QUESTION, "--config", str(settings)]) == 1
    assert 'decoding.mode is "federated"; choose "dual" or "speculative"' in capsys.readouterr().err
