"""What leaves the device, by kind: the kinds add up to what the link counts, and each is what it says."""

from __future__ import annotations

import math
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tandem import Config, QueryError, Tandem
from tandem.cli import main
from tandem.client import request
from tandem.engine import privacy
from tandem.engine.privacy import Ledger, Privacy, ledger_path
from tandem.errors import Code
from tandem.messages import Cancel, LinkFrame, Open, Vote
from tandem_lab.tally import KINDS, Tally, listening_queue

QUESTION = "Which game should Mira try?"
WAIT = ["link.on_peer_loss=wait"]
COUPLED = "decoding.draft_rule=coupled"
LOTTERY = "decoding.draft_rule=lottery"
NO_DOCUMENT = {"device_filter": {"source": "none"}}
NO_SUCH_KEY = {"device_filter": {"colour": "red"}}


def asked(
    settings: list[str],
    *,
    frames: list[LinkFrame] | None = None,
    notes: list[str] | None = None,
    **options: Any,
) -> tuple[Tally, dict[str, int], list[LinkFrame]]:
    """What was counted, what the link counted, and the frames. frames, notes: receive those of the answer."""
    tally, frames = Tally(), [] if frames is None else frames

    def listen(frame: LinkFrame, encoded: bytes) -> None:
        tally.add(frame, encoded)
        frames.append(frame)

    classes: Any = {"draft_queue": listening_queue("device", listen)}
    with Tandem.launch(Config.load(None, settings), runtime="inline", actor_classes=classes) as tandem:
        answer = tandem.query(QUESTION, seed=7, **options)
        (notes if notes is not None else []).extend(answer.notes)
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


def test_the_budget_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))

    def audit(*settings: str) -> list[str]:
        options = [part for setting in ("device.privacy=2", *settings) for part in ("--set", setting)]
        assert main(["lab", "audit", QUESTION, "--seed", "7", "--temperature", "1", *options]) == 0
        return capsys.readouterr().out.splitlines()[-3:]

    bound, spent, promise = audit(LOTTERY, "device.privacy_budget=90")
    number = r"[\d.e+-]+"
    counted = rf"Spent so far: {number} nats by \d+ tokens over all documents; {number} of 90 nats left\."
    assert bound == "Privacy: no log probability differs by more than 2 nats from that without documents."
    assert re.fullmatch(counted, spent)
    assert promise == "The count holds for whoever sees all that left the device, the cloud included."
    left = Ledger(ledger_path()).spent()
    assert 0 < left.nats <= left.num_draws * math.log(2 * math.cosh(2) - 1)
    assert audit(COUPLED)[-1] == (
        "Votes show how probable tokens are: the count promises nothing, and no budget can be set."
    )


def test_a_budget_that_is_used_up_leaves_what_is_without_documents(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With a budget of nearly nothing every token is the bare row's; the noise is given, so that answers compare."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(privacy, "Privacy", partial(Privacy, noise=lambda: 5))
    settings = ["device.privacy=50", "sampling.temperature=1.0", "sampling.max_new_tokens=24"]
    for budget in ("1e-9", "900"):
        config = Config.load(None, [*settings, f"device.privacy_budget={budget}"])
        with Tandem.launch(config, runtime="inline") as tandem:
            texts = [
                tandem.query(QUESTION, seed=7, only="device", **options).text for options in ({}, NO_DOCUMENT)
            ]
        assert (texts[0] == texts[1]) == (budget != "900")
        assert (Ledger(ledger_path()).spent().nats <= 1e-9) == (budget != "900")


def test_a_filter_that_names_what_is_not_there_is_refused_before_anybody_hears_of_it() -> None:
    """No frame: the cloud is not to learn that there is no such document."""
    with pytest.raises(QueryError, match="'colour' is none of") as raised:
        asked(WAIT, frames=(frames := list[LinkFrame]()), **NO_SUCH_KEY)
    assert (raised.value.option, raised.value.code) == ("device_filter", Code.INVALID)
    assert frames == []


def test_with_a_bound_the_cloud_sees_no_difference_where_nothing_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Documents are there, the filter lets none through, or names what none has: the same query and, with one noise and
    next to no say of the documents, the same drafts and, to the bit, weights; only the person at home is told."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    settings = [*WAIT, "sampling.temperature=1.0", "sampling.max_new_tokens=8"]
    bounded = [*settings, "device.privacy=1e-3"]
    monkeypatch.setattr(privacy, "Privacy", partial(Privacy, noise=lambda: 5))
    monkeypatch.setattr(
        request, "secrets", SimpleNamespace(randbits=lambda bits: 1)
    )  # digests name the session
    seen, told, openings = [], [], list[str]()
    for made, options in ((bounded, {}), (bounded, NO_DOCUMENT), (bounded, NO_SUCH_KEY), (settings, {})):
        notes = list[str]()
        _, _, frames = asked(made, notes=notes, **options)
        bodies = [frame.body for frame in frames]
        assert not [body for body in bodies if isinstance(body, Cancel)]
        openings.append(next(body.spec for body in bodies if isinstance(body, Open)))
        votes = [body for body in bodies if isinstance(body, Vote)]
        seen.append({vote.digest: (vote.tokens, vote.log_weights) for vote in votes})
        told.append([note for note in notes if "documents" in note or "document that" in note])
    common = seen[0].keys() & seen[1].keys() & seen[2].keys()  # what is drafted in vain depends on times
    assert openings[0] == openings[1] == openings[2]
    assert len(common) > 4
    assert all(seen[0][digest] == seen[1][digest] == seen[2][digest] for digest in common)
    assert any(seen[3][digest] != seen[0][digest] for digest in seen[3].keys() & common), "without a bound"
    assert told[0] == []
    assert "no document that its filter lets through" in told[1][0]
    assert "The device answers without documents: A filter must name metadata" in told[2][0]
