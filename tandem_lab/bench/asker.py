"""The systems of DRAGON 7.2 and Tandem's own on running actors: one question each, and a record of what was seen.

Every kind is a few lines on the same parts: a stream, texts and caches of the cloud, whole sequences. Knows a running
cluster and the clock; nothing of links or grids.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import isfinite, nan
from typing import Any, assert_never

import numpy as np

from tandem.aggregation.rules import shares
from tandem.client.tandem import Tandem
from tandem.codecs import Codec, codec_of
from tandem.errors import QueryError
from tandem.events import DoneEvent, Event, SessionStatistics, TokenEvent
from tandem.topology import PARTIES, Party
from tandem_lab.baselines.client import Baselines
from tandem_lab.baselines.sequences import SequenceResult
from tandem_lab.bench.records import Record, Setting
from tandem_lab.bench.systems import System
from tandem_lab.bench.work import Work

LAST_FRAMES_RTTS, LAST_FRAMES_S = 2, 0.1
"""How long the last frames of an answer may be under way once it is done: so many round trips, and seconds besides."""


@dataclass(slots=True)
class _Answer:
    """One answer, by the clock of whoever asked."""

    token_ids: tuple[int, ...]
    committed_s: tuple[float, ...]
    drafted_s: float = nan
    statistics: SessionStatistics | None = None
    frame_bytes: dict[str, int] = field(default_factory=dict)
    waited_for: dict[str, int] = field(default_factory=dict)


class Asker:
    """Asks questions of one deployment, one after the other."""

    def __init__(self, tandem: Tandem, baselines: Baselines) -> None:
        config = tandem.config
        self._tandem, self._baselines = tandem, baselines
        self._codec = codec_of(config.codec)
        self._parties = config.parties
        self._work = Work.of(tandem)

    def ask(self, system: System, setting: Setting, question: str, number: int, run: int) -> Record:
        """One question; its number is its seed. Raises QueryError if there is no whole answer."""
        self._baselines.treat(dict.fromkeys(self._parties, system.treatment))
        asked_at_s = time.time()
        answered = self._answered(system, setting, question, number)
        done_at_s = time.time()
        if setting.deployment == "join":  # on a cluster the counters cross the link, behind the last frames
            time.sleep(LAST_FRAMES_RTTS * setting.rtt_s + LAST_FRAMES_S)
        before, self._work = self._work, Work.of(self._tandem)
        used = self._work.since(before)
        statistics = answered.statistics or SessionStatistics()
        return Record(
            system=system.name,
            run=run,
            question=number,
            token_ids=answered.token_ids,
            committed_s=answered.committed_s,
            drafted_s=answered.drafted_s,
            num_accepted=_accepted(system, statistics, self._parties[0]),
            expected_acceptance=_expected(system, statistics),
            num_forwards=used.num_forwards,
            num_abandoned=used.num_abandoned,
            decode_s=used.decode_s,
            waited_s=waited_s(answered.committed_s, used) if system.kind == "together" else nan,
            cpu_s=used.cpu_s,
            frame_bytes=answered.frame_bytes or _by_party(statistics, "bytes"),
            num_frames=_by_party(statistics, "frames"),
            num_messages=used.num_messages,
            waited_for=answered.waited_for,
            num_resyncs=statistics.num_resyncs,
            num_resent=statistics.num_resent_frames,
            asked_at_s=asked_at_s,
            done_at_s=done_at_s,
            settled_at_s=time.time(),
        )

    # ---- the kinds of systems --------------------------------------------------------------------------------

    def _answered(self, system: System, setting: Setting, question: str, number: int) -> _Answer:
        options = {
            "seed": number,
            "temperature": setting.temperature,
            "max_new_tokens": setting.max_new_tokens,
            **system.options,
        }
        match system.kind:
            case "alone" | "together" | "proposals":
                return self._streamed(question, options)
            case "text":
                return self._with_texts(system, question, options)
            case "sequences":
                return self._sequence_wise(question, options, is_dense=system.is_dense)
            case _:
                assert_never(system.kind)

    def _streamed(self, question: str, options: Mapping[str, Any], begun_s: float | None = None) -> _Answer:
        """begun_s: when the person asked, by time.monotonic(); None: as the query is opened."""
        before_s = 0.0 if begun_s is None else time.monotonic() - begun_s
        events = list(self._tandem.stream(question, **options))
        done = _done(events)
        tokens = [event for event in events if isinstance(event, TokenEvent)]
        return _Answer(
            token_ids=tuple(token.token for token in tokens),
            committed_s=tuple(before_s + token.committed_s for token in tokens),
            statistics=done.statistics,
            waited_for=dict(Counter(token.last_voter for token in tokens if token.last_voter is not None)),
        )

    def _with_texts(self, system: System, question: str, options: Mapping[str, Any]) -> _Answer:
        """DRCG/Text: texts cross, the device computes all from scratch."""
        begun_s = time.monotonic()
        texts = self._texts(question)
        answered = self._with_documents(system, texts, question, options, begun_s)
        answered.frame_bytes = {
            "device": len(question.encode()),
            "cloud": sum(len(t.encode()) for t in texts),
        }
        return answered

    def _with_documents(
        self, system: System, texts: Sequence[str], question: str, options: Mapping[str, Any], begun_s: float
    ) -> _Answer:
        """The device answers alone, from these texts too."""
        treatment = replace(system.treatment, extra_documents=tuple(texts))
        self._baselines.treat({Party.DEVICE: treatment})
        return self._streamed(question, options, begun_s)

    def _sequence_wise(self, question: str, options: Mapping[str, Any], *, is_dense: bool) -> _Answer:
        """DRDG/SW: both sides write at once, the device takes the likelier when the cloud's has come."""
        begun_s = time.monotonic()
        with ThreadPoolExecutor(1) as thread:
            theirs = thread.submit(
                self._baselines.write_answer, question, Party.CLOUD, dense=is_dense, **options
            )
            answer = self._tandem.query(question, only=Party.DEVICE, **options)
            own = self._baselines.fetch_sequence(answer, Party.DEVICE, dense=is_dense)
            sequences = {Party.DEVICE: own, Party.CLOUD: theirs.result()}
        chosen = sequences[pick_likelier(sequences, None if is_dense else self._codec)]
        end_s = time.monotonic() - begun_s
        return _Answer(
            token_ids=chosen.tokens,
            committed_s=(end_s,) * len(chosen.tokens),
            drafted_s=answer.tokens[0].committed_s,
            frame_bytes={"device": len(question.encode()), "cloud": sequences[Party.CLOUD].num_bytes},
        )

    def _texts(self, question: str) -> list[str]:
        return self._baselines.fetch_texts(question, self._tandem.config.cloud.num_documents)


def _done(events: Sequence[Event]) -> DoneEvent:
    done = events[-1] if events else None
    if not isinstance(done, DoneEvent) or done.reason in ("failed", "cancelled"):
        error = done.error if isinstance(done, DoneEvent) else None
        raise QueryError(
            error or "A measured question must be answered to its end, this one was not; try again."
        )
    return done


def _accepted(system: System, statistics: SessionStatistics, home: str) -> dict[str, int]:
    if system.kind == "proposals":
        return {str(home): statistics.num_device_accepted}
    if system.kind != "together":
        return {}
    return {"device": statistics.num_device_accepted, "cloud": statistics.num_cloud_accepted}


def _expected(system: System, statistics: SessionStatistics) -> dict[str, float]:
    if system.kind != "together":
        return {}
    return {
        "device": statistics.expected_device_acceptance,
        "cloud": statistics.expected_cloud_acceptance,
    }


def _by_party(statistics: SessionStatistics, what: str) -> dict[str, int]:
    """By sender, as the device, or the server, counted them."""
    return {
        "device": getattr(statistics, f"sent_{what}"),
        "cloud": getattr(statistics, f"received_{what}"),
    }


def waited_s(committed_s: Sequence[float], used: Work) -> float:
    """How much longer than the slower decoder takes the tokens were in coming, summed over those that came late."""
    paces_s = [used.decode_s[party] / count for party, count in used.num_forwards.items() if count]
    slower_s = max(paces_s, default=nan)
    if not isfinite(slower_s):
        return nan
    gaps_s = (later - earlier for earlier, later in pairwise(committed_s))
    return sum(max(0.0, gap_s - slower_s) for gap_s in gaps_s)


# ---- Whole answers: DRDG/SW --------------------------------------------------------------------------------------


def log_probability(sequence: SequenceResult, codec: Codec | None) -> float:
    """Sum of log q(x_t) over the steps. codec: None if the distributions are dense. -inf if a
    token has probability 0."""
    total = 0.0
    for token, distribution in zip(sequence.tokens, sequence.distributions, strict=True):
        if codec is None:
            dense = np.frombuffer(distribution, dtype="<f2").astype(np.float64)
            probability = float(dense[token] / dense.sum())
        else:
            probability = codec.decode(distribution).probability(token)
        total += math.log(probability) if probability > 0 else -math.inf
    return total


def pick_likelier(sequences: dict[Party, SequenceResult], codec: Codec | None) -> Party:
    """The side s with the greatest log eta^s + sum of log q^s(x_t); the device's in a tie.

    RAG-Sequence's "fast decoding" (Lewis et al., 2020) with a side in the place of a document: an answer counts only
    under the distributions of the side that wrote it.
    """
    etas = shares(*(sequences[party].log_weight for party in PARTIES))
    scores = [
        _log(eta) + log_probability(sequences[party], codec) for party, eta in zip(PARTIES, etas, strict=True)
    ]
    return Party.DEVICE if scores[0] >= scores[1] else Party.CLOUD


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf
