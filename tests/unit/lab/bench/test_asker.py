"""The kinds of systems, on a cluster that answers from a script: what is asked of it, what becomes of the numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tandem.codecs import TopP
from tandem.config.schema import Config
from tandem.errors import QueryError
from tandem.events import Answer, DoneEvent, SessionStatistics, TokenEvent
from tandem.topology import PARTIES, Party
from tandem_lab.baselines.experiments import Treatment
from tandem_lab.baselines.sequences import SequenceResult
from tandem_lab.bench.asker import Asker
from tandem_lab.bench.records import Setting
from tandem_lab.bench.systems import BY_NAME, DUAL

SETTING = Setting(floors_s=(0.06, 0.025), rtt_s=0.1, temperature=1.0, max_new_tokens=48)
LAW = TopP(0.8).encode(np.array([0.1, 0.2, 0.7]))
TEXTS = ["one text", "zwei Töne"]


def token(step: int, committed_s: float) -> TokenEvent:
    return TokenEvent(
        step=step,
        token=2,
        text="x",
        device_accepted=True,
        cloud_accepted=False,
        aggregator=Party.DEVICE,
        committed_s=committed_s,
        device_decode_s=0.06,
        cloud_decode_s=0.025,
    )


TOKENS = (token(0, 0.2), token(1, 0.3), token(2, 0.5))
STATISTICS = SessionStatistics(
    num_tokens=3,
    num_device_accepted=3,
    num_cloud_accepted=1,
    expected_device_acceptance=0.9,
    expected_cloud_acceptance=0.5,
    sent_frames=6,
    sent_bytes=600,
    received_frames=7,
    received_bytes=700,
    num_resyncs=1,
    num_resent_frames=2,
)


class FakeTandem:
    """Notes what it is asked; every status is one question's work further on."""

    def __init__(self, done: DoneEvent) -> None:
        self.config = Config().with_names()
        self.asked: list[tuple[str, Any]] = []
        self.done = done
        self._num_statuses = 0

    def stream(self, question: str, **options: Any) -> list[Any]:
        self.asked.append(("stream", options))
        return [*TOKENS, self.done]

    def query(self, question: str, **options: Any) -> Answer:
        self.asked.append(("query", options))
        return Answer(
            text="xxx", tokens=TOKENS, sources=(), reason="eos", seed=0, statistics=SessionStatistics()
        )

    def treat(self, treatments: dict[Party, Treatment]) -> None:
        self.asked.append(("treat", treatments))

    def fetch_sequence(self, answer: Answer, party: Party, *, dense: bool = False) -> SequenceResult:
        return SequenceResult((1, 1), (self._law(dense),) * 2, 0.0)

    def write_answer(
        self, question: str, party: Party, *, dense: bool = False, **options: Any
    ) -> SequenceResult:
        self.asked.append(("write_answer", {"party": party, "dense": dense, **options}))
        return SequenceResult((2, 2), (self._law(dense),) * 2, 0.0)

    def _law(self, dense: bool) -> bytes:
        return np.array([0.1, 0.2, 0.7], dtype="<f2").tobytes() if dense else LAW

    def fetch_texts(self, question: str, num_documents: int) -> list[str]:
        self.asked.append(("fetch_texts", num_documents))
        return TEXTS

    def fetch_caches(self, texts: list[str]) -> bytes:
        self.asked.append(("fetch_caches", texts))
        return b"c" * 1000

    def lend_caches(self, texts: list[str], caches: bytes) -> None:
        self.asked.append(("lend_caches", (texts, len(caches))))

    def status(self) -> dict[str, Any]:
        number, self._num_statuses = self._num_statuses, self._num_statuses + 1
        actors = []
        for party, forwards, decode_s in (("device", 5, 0.3), ("cloud", 4, 0.1)):
            extra = {
                "num_forwards": forwards * number,
                "num_abandoned": (forwards - 4) * number,
                "decode_s": decode_s * number,
            }
            links = {f"{Party(party).other}/draft_queue": {"writes": 3 * number}}
            actors += [
                {"name": f"{party}/decoder", "pid": 1, "cpu_s": 0.2 * number, "extra": extra, "links": {}},
                {
                    "name": f"{party}/draft_queue",
                    "pid": 2,
                    "cpu_s": 0.01 * number,
                    "extra": {},
                    "links": links,
                },
            ]
        return {"actors": actors}


def asked(system: str, done: DoneEvent | None = None) -> tuple[Any, FakeTandem]:
    tandem = FakeTandem(done or DoneEvent(reason="eos", statistics=STATISTICS))
    made = Asker(tandem, tandem)  # type: ignore[arg-type]
    return made.ask(BY_NAME[system], SETTING, "Why?", 1, 4), tandem


def test_both_parties_together() -> None:
    record, tandem = asked("Tandem/greedy/algorithm1")
    assert tandem.asked == [
        ("treat", dict.fromkeys(PARTIES, Treatment())),
        (
            "stream",
            {
                "seed": 1,
                "temperature": 1.0,
                "max_new_tokens": 48,
                "placement": "greedy",
                "draft_rule": "algorithm1",
                "max_window": 16,
            },
        ),
    ]
    assert (record.run, record.question, record.token_ids) == (4, 1, (2, 2, 2))
    assert record.committed_s == (0.2, 0.3, 0.5)
    assert record.num_accepted == {"device": 3, "cloud": 1}
    assert record.num_forwards == {"device": 5, "cloud": 4}
    assert record.num_abandoned == {"device": 1, "cloud": 0}
    assert record.frame_bytes == {"device": 600, "cloud": 700}
    assert record.num_messages == {"device": 3, "cloud": 3}
    assert record.cpu_s["cloud/decoder"] == pytest.approx(0.2)
    assert (record.num_resyncs, record.num_resent) == (1, 2)
    # the slower decoder takes 0.06 s: the tokens came 0.04 and 0.14 s later than that
    assert record.waited_s == pytest.approx(0.18)
    assert record.lost_s(Party.DEVICE) == pytest.approx(2 / 5 * 0.3)


@pytest.mark.parametrize("party", ["device", "cloud"])
def test_one_party_alone(party: str) -> None:
    record, tandem = asked(f"CRCG/{party}")
    (_, treatments), (_, options) = tandem.asked
    assert treatments == dict.fromkeys(PARTIES, Treatment(concat_documents=True))
    assert options["only"] == party
    assert "placement" not in options
    assert record.num_accepted == {}
    assert math.isnan(record.waited_s)


def test_every_system_can_be_asked() -> None:
    for system in DUAL:
        record, _ = asked(system.name)
        assert record.system == system.name
        assert record.num_tokens > 0


def test_an_answer_that_failed_is_no_record() -> None:
    with pytest.raises(QueryError, match="the link is gone"):
        asked("Tandem/mirror", DoneEvent(reason="failed", statistics=STATISTICS, error="the link is gone"))
    with pytest.raises(QueryError, match="must be answered to its end"):
        asked("Tandem/mirror", DoneEvent(reason="cancelled", statistics=STATISTICS))


def test_texts_and_caches_are_fetched_first_and_lent() -> None:
    record, tandem = asked("DRCG/Text")
    assert [name for name, _ in tandem.asked] == ["treat", "fetch_texts", "treat", "stream"]
    assert tandem.asked[1][1] == 16
    treatment = Treatment(concat_documents=True, extra_documents=tuple(TEXTS))
    assert tandem.asked[2][1] == {Party.DEVICE: treatment}
    assert record.committed_s[0] > 0.2, "what passed before it was opened counts"
    assert record.frame_bytes == {"device": 4, "cloud": 8 + 10}
    record, tandem = asked("DRCG/KV")
    names = [name for name, _ in tandem.asked]
    assert names == ["treat", "fetch_texts", "fetch_caches", "lend_caches", "treat", "stream"]
    assert tandem.asked[3][1] == (TEXTS, 1000)
    rows = Treatment(extra_documents=tuple(TEXTS))
    assert tandem.asked[4][1] == {Party.DEVICE: rows}, "one row per document"
    assert record.frame_bytes["cloud"] == 18 + 1000


@pytest.mark.parametrize("system", ["DRDG/SW", "DRDG/SW-dense"])
def test_the_likelier_sequence_is_taken_at_the_end(system: str) -> None:
    record, tandem = asked(system)
    calls = dict(tandem.asked)
    assert calls["treat"] == dict.fromkeys(PARTIES, Treatment(keeps_distributions=True))
    assert calls["write_answer"]["party"] == "cloud"
    assert calls["write_answer"]["dense"] is (system == "DRDG/SW-dense")
    assert calls["query"]["only"] == "device"
    assert record.token_ids == (2, 2), "the cloud's: 0.7 twice against 0.2 twice"
    assert record.committed_s[0] == record.committed_s[1], "nothing is final before"
    assert record.drafted_s == 0.2
