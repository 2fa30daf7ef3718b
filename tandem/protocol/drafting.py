"""The decoder of a party that drafts: how far ahead of the committed prefix, and when drafts become a proposal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tandem.messages import Adopt, Alone, Local, Proposal, ProposalLength, Window
from tandem.modes.spec import SessionSpec
from tandem.protocol.decoding import Computed, DecodingSession, Forward
from tandem.protocol.outbox import Send

KEPT_DRAFTS = 8
"""Drafts of committed steps that are kept: a Resync may take some tokens back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What was drafted on one prefix."""

    step: int
    token: int
    payload: bytes  # the encoded distribution; where ids alone travel, the token
    log_weight: float
    decode_us: int


class DraftingSession(DecodingSession):
    """The state of one query in the decoder of a party that drafts.

    Invariant: one draft per prefix, ever; what was drafted is stored and proposed again from the store. Every token is
    proposed once per line, in proposals of `length` tokens, or shorter ones where nothing can be added now or the
    budget of bits is used up, or longer ones, up to the query's limit, where more were drafted when the length became
    less. A draft that exceeds the budget by itself is never proposed: the voter decides its step.
    """

    def __init__(self, spec: SessionSpec, party: str) -> None:
        super().__init__(spec, party)
        role = spec.roles.role(party)
        self.has_vote = role.votes  # then each token is a proposal of its own, with its distribution
        self.length = 1 if self.has_vote else spec.rules.first_length
        self._max_length = 1 if self.has_vote else max(1, spec.rules.longest_proposal)
        self.window = 1 if spec.decoding.synchronous else spec.decoding.max_window
        if self.has_vote and not spec.decoding.synchronous:
            self.window = min(4, spec.decoding.max_window)
        self._is_alone = False  # no voter is there: the answer goes on with what is drafted here
        self._num_proposed = 0  # tokens of the line that are committed or proposed
        self._asked_step = -1  # for which a proposal without tokens asked
        self._drafts: dict[bytes, Draft] = {}  # by digest of their prefix

    @property
    def num_drafts(self) -> int:
        """Drafts that are stored."""
        return len(self._drafts)

    # ---- results -------------------------------------------------------------------------------------------------

    def finish(self, job: Forward, results: Sequence[Computed]) -> list[Send]:
        """Propose the result of `job`, which is one draft."""
        if not self.is_current(job):
            return []
        self._learn(job, results)
        if job.is_catching_up:
            return []
        result = results[-1]
        draft = Draft(
            step=job.step,
            token=result.token,
            payload=result.payload,
            log_weight=result.log_weight,
            decode_us=result.decode_us,
        )
        self._drafts[job.digest] = draft
        return [*self._emit(draft), *self._ask()]

    def is_current(self, job: Forward) -> bool:
        """Whether the result of `job` is still wanted; the model asks between layers."""
        if self._has_ended or len(self.prefix) < job.step or self.prefix.digests[job.step] != job.digest:
            return False
        return job.is_catching_up or len(self.prefix) == job.step

    # ---- planning ------------------------------------------------------------------------------------------------

    def _next_forward(self) -> Forward | None:
        step = len(self.prefix)
        return self._plan(step, step) if self._may_draft() else None

    def _may_draft(self) -> bool:
        step = len(self.prefix)
        if not self._may_continue(step) or step - self.line.num_committed >= self.window:
            return False
        return self._is_alone or (self.length > 0 and not self._waits_for_verdict and not self._is_held_up)

    @property
    def _waits_for_verdict(self) -> bool:
        """Stop-and-wait: whether a proposal is on its way."""
        if self._is_alone or self.has_vote or self.spec.rules.pacing != "stop_and_wait":
            return False
        return max(self._num_proposed, self._asked_step + 1) > self.line.num_committed

    # ---- proposals -----------------------------------------------------------------------------------------------

    def _emit(self, draft: Draft) -> list[Send]:
        self.prefix.append(draft.token)
        return self._propose()

    @property
    def _is_held_up(self) -> bool:
        """Whether the next draft to propose exceeds the budget by itself."""
        left = self._drafts_left(1)
        return bool(left) and self._count_fitting(left) == 0

    def _drafts_left(self, most: int) -> list[Draft]:
        """The first drafts of the line that are in no proposal, at most so many."""
        first = max(self._num_proposed, self.line.num_committed)
        end = min(first + most, len(self.prefix))
        return [self._drafts[digest] for digest in self.prefix.digests[first:end]]

    def _count_fitting(self, drafts: Sequence[Draft]) -> int:
        """How many of them one proposal may hold; nothing of what this party commits alone crosses the link."""
        payloads = [draft.payload for draft in drafts]
        return len(drafts) if self._is_alone else self.spec.rules.count_fitting(payloads)

    def _propose(self) -> list[Send]:
        """Proposals of the drafts that are in none yet, as soon as they are enough or nothing can be added to them."""
        self._num_proposed = max(self._num_proposed, self.line.num_committed)
        enough = 1 if self._is_alone else self.length
        sends: list[Send] = []
        while not self._waits_for_verdict and (left := self._drafts_left(self._max_length)):
            count = self._count_fitting(left)
            is_full = count < len(left)
            if count == 0 or (count < enough and not is_full and self._may_draft()):
                break
            sends.append(self._make_proposal(self._num_proposed, left[:count]))
            self._num_proposed += count
        return sends

    def _make_proposal(self, step: int, drafts: Sequence[Draft]) -> Send:
        proposal = Proposal(
            party=self.spec.roles.topology.index(self.party),
            step=step,
            digest=self.prefix.digests[step],
            tokens=tuple(draft.token for draft in drafts),
            payloads=tuple(draft.payload for draft in drafts),
            log_weights=tuple(draft.log_weight for draft in drafts) if self.has_vote else (),
            decode_us=sum(draft.decode_us for draft in drafts),
        )
        return Send("draft_queue", Local(session=self.spec.session, body=proposal))

    def _ask(self) -> list[Send]:
        """Proposals of no tokens ask for the next token, unless the voter goes on without being asked."""
        step = self.line.num_committed
        has_none = self.length == 0 or self._is_held_up
        is_asking = has_none and not self._is_alone and self.spec.rules.pacing != "cloud_goes_on"
        if (
            not is_asking
            or not self._is_prefilled
            or step <= self._asked_step
            or step < self._num_proposed
            or not self._may_continue(step)
        ):
            return []
        self._asked_step = step
        return [self._make_proposal(step, ())]

    def _extend(self) -> list[Send]:
        """Propose again what was already drafted on the present prefix, then what is left over."""
        self._num_proposed = min(self._num_proposed, len(self.prefix))
        sends: list[Send] = []
        while self._may_draft() and (stored := self._drafts.get(self.prefix.digest)) is not None:
            sends += self._emit(stored)
        return [*sends, *self._propose(), *self._ask()]

    # ---- changes -------------------------------------------------------------------------------------------------

    def finish_prefill(
        self,
        prefill_us: int,
        notes: tuple[str, ...],
        rows: Sequence[int] | None = None,
        question: Sequence[float] = (),
    ) -> list[Send]:
        """As the base class."""
        return [*super().finish_prefill(prefill_us, notes, rows, question), *self._ask()]

    def _on_order(self, message: Any) -> list[Send]:
        match message:
            case Window():
                if not self.spec.decoding.synchronous:
                    self.window = max(1, min(message.size, self.spec.decoding.max_window))
            case Alone():
                self._is_alone = message.is_alone
            case ProposalLength():
                self.length = min(message.length, self.spec.rules.longest_proposal)
        return self._extend()  # what was drafted before under a wider window

    def _on_adopt(self, adopt: Adopt) -> list[Send]:
        self._num_proposed, self._asked_step = 0, -1  # what was proposed may be lost
        return super()._on_adopt(adopt)

    def _forget(self) -> None:
        """Drop what no later step can need."""
        num_committed = self.line.num_committed
        if num_committed % 32 == 0:
            self._forget_evidence()
            horizon = num_committed - KEPT_DRAFTS
            self._drafts = {key: kept for key, kept in self._drafts.items() if kept.step >= horizon}
