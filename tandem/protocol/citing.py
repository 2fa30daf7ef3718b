"""Which of the home's documents said each committed token: the decoder's word and the votes', joined by prefix."""

from __future__ import annotations

from collections.abc import Sequence

from tandem.citations import Citation, Part, cite
from tandem.events import CitationEvent
from tandem.messages import Attribution, DecoderReady, Verdict, VerifyResult
from tandem.modes.mode import Mode
from tandem.protocol.prefix import Prefix


class CitedTokens:
    """The tokens of a session that await what the home's decoder says of them, and what it said ahead of the commit.

    Invariants: what is said of a prefix first counts, whatever a restarted decoder computes again. A token is cited
    once, and a commit never waits. Shares are a function of the prefix and the votes, never of who came first.
    """

    def __init__(self, rules: Mode, party: str) -> None:
        """rules: of the query. party: this one; elsewhere than at home nothing is cited."""
        self._rules, self._party = rules, party
        self._ids: tuple[str, ...] | None = None  # of the documents that shares are of, once they are known
        self._always: tuple[float, ...] = ()  # `Attribution.masses` of every token
        self._ahead: dict[bytes, Attribution] = {}  # by digest: of tokens that are not committed
        self._awaited: dict[bytes, tuple[int, Part]] = {}  # by digest: step of a committed token
        self._has_changed = (
            False  # a restarted decoder found other documents: shares of two lists cannot be told apart
        )

    def begin(self, ready: DecoderReady) -> None:
        """The home's documents are known."""
        self._has_changed |= self._ids not in (None, ready.sources)
        self._ids, self._always = ready.sources, ready.masses

    def take(self, attributions: Sequence[Attribution], num_committed: int) -> list[CitationEvent]:
        """Take the decoder's attributions of some tokens: the shares of those that are committed."""
        events = []
        for each in attributions:
            if (awaited := self._awaited.pop(each.digest, None)) is not None and not self._has_changed:
                step, part = awaited
                events.append(CitationEvent(step=step, citation=cite(each.masses, part)))
            elif each.step >= num_committed:
                self._ahead.setdefault(each.digest, each)
        return events

    def commit(
        self, prefix: Prefix, verdict: Verdict, position: int, result: VerifyResult | None
    ) -> Citation | None:
        """The shares of the last token of the committed `prefix`; None: not known, or not yet.

        It stands at this position of a verdict, which was made of the own `result`, or elsewhere.
        """
        step, digest = len(prefix) - 1, prefix.digest
        attribution = self._ahead.get(digest)
        self._ahead = {key: each for key, each in self._ahead.items() if each.step > step}
        part = self._find_part(verdict, position, result)
        if part is None or self._ids == () or self._has_changed:
            return None
        if part == Part(0.0):
            return Citation(documents=(), others=1.0)
        masses = self._always if attribution is None else attribution.masses
        if not masses:
            self._awaited[digest] = step, part
            return None
        return cite(masses, part)

    def _find_part(self, verdict: Verdict, position: int, result: VerifyResult | None) -> Part | None:
        """How much of a token the home said; None: it has no part in the answer, no documents, or is another party."""
        topology = self._rules.roles.topology
        if self._party != topology.home or not self._rules.spec.num_documents(self._party):
            return None
        if result is None:
            return self._rules.part_elsewhere(verdict.accepted_at(position))
        if result.own:
            return Part(result.own[position])
        return Part(float(result.voters == (topology.index(self._party),)))
