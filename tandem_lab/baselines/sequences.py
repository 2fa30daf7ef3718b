"""Whole answers with their distributions, kept by a decoder until they are fetched."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field

from tandem.aggregation.rules import Step
from tandem.errors import TandemError

MAX_SEQUENCES = 4
"""Sessions that are kept, at most; each holds two bytes per step and vocabulary entry."""


@dataclass(slots=True)
class Sequence:
    """What is kept of one session."""

    steps: dict[int, tuple[Step, bytes]] = field(
        default_factory=dict
    )  # with q, [vocab] little-endian float16
    ended: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True)
class SequenceResult:
    """One side's whole answer."""

    tokens: tuple[int, ...]
    distributions: tuple[bytes, ...]  # of each step: encoded, or [vocab] little-endian float16
    log_weight: float  # log-sum-exp of its documents' scores for the question

    @property
    def num_bytes(self) -> int:
        """What crosses the link at least: distributions, four bytes per token, eight for the weight."""
        return sum(map(len, self.distributions)) + 4 * len(self.tokens) + 8

    def up_to(self, num_tokens: int) -> SequenceResult:
        """Its beginning: a decoder drafts past a stop text."""
        return SequenceResult(self.tokens[:num_tokens], self.distributions[:num_tokens], self.log_weight)


class SequenceStore:
    """The last few sessions of one decoder, each kept from its begin, or the first wait for it, until it is fetched."""

    def __init__(self) -> None:
        self._sequences: OrderedDict[int, Sequence] = OrderedDict()

    def begin(self, session: int) -> None:
        """Make room for a session."""
        self._sequences.setdefault(session, Sequence())
        while len(self._sequences) > MAX_SEQUENCES:
            self._sequences.popitem(last=False)

    def is_keeping(self, session: int) -> bool:
        """Whether the steps of a session are wanted: it has begun, has not ended and was not fetched."""
        sequence = self._sequences.get(session)
        return sequence is not None and not sequence.ended.is_set()

    def add(self, session: int, step: Step, dense: bytes) -> None:
        """Keep one step, if it is wanted. The first draft of a step counts: alone, every draft is accepted."""
        if self.is_keeping(session):
            self._sequences[session].steps.setdefault(step.step, (step, dense))

    def end(self, session: int, *, failed: bool = False) -> None:
        """A session has ended; one that failed keeps no step."""
        if (sequence := self._sequences.get(session)) is not None:
            if failed:
                sequence.steps.clear()
            sequence.ended.set()

    async def wait_for_end(self, session: int, limit_s: float) -> None:
        """Wait for the end of a session, which need not have begun yet. Raises TandemError after `limit_s`."""
        self.begin(session)
        try:
            await asyncio.wait_for(self._sequences[session].ended.wait(), limit_s)
        except TimeoutError:
            self._sequences.pop(session, None)
            raise TandemError(
                f"The session did not end within {limit_s:g} s; raise cluster.query_timeout_s."
            ) from None

    def take(self, session: int, num_tokens: int | None, *, dense: bool) -> SequenceResult:
        """The first `num_tokens` steps (None: all) of a session, which is forgotten then.

        Raises TandemError if not all of them are kept.
        """
        sequence = self._sequences.get(session, Sequence())
        count = max(1, len(sequence.steps)) if num_tokens is None else num_tokens
        if not set(range(count)) <= set(sequence.steps):
            raise TandemError(
                f"Distributions are kept for the last {MAX_SEQUENCES} queries that asked for them, until they are "
                f"fetched; {count} steps were requested and {len(sequence.steps)} are there. Ask the query again."
            )
        del self._sequences[session]
        steps = [sequence.steps[number] for number in range(count)]
        return SequenceResult(
            tokens=tuple(step.token or 0 for step, _ in steps),
            distributions=tuple(whole if dense else step.payload or b"" for step, whole in steps),
            log_weight=steps[0][0].log_weight or 0.0,
        )
