"""Weights of one party's documents during an answer (DRAGON 4.1, with a fixed lag).

They are a function of the prefix alone, so timing cannot change an answer, and they roll back with it. So is what is
estimated at all: only what a later token's distribution can depend on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tandem.aggregation.document_weights import blend, text_to_score, weight_anchor
from tandem.protocol.messages import RescoreRequest, RescoreResult
from tandem.protocol.outbox import Send
from tandem.protocol.prefix import Prefix
from tandem.protocol.spec import SessionSpec

Weights = tuple[float, ...]
"""R(d, x) = scale * score of each row: of each document, in the order of `RetrieveResult.ids`."""


class RelevanceWeights:
    """The weights, by the digest of the prefix that they were estimated on.

    Invariant: one estimation is under way at a time, and they come in the order of the prefix.
    """

    def __init__(self, spec: SessionSpec, text: Callable[[Sequence[int]], str]) -> None:
        """text: turns answer tokens into text."""
        self.weights: dict[bytes, Weights] = {}  # by digest of x_<kappa
        self._spec = spec
        self._interval = spec.weight_interval
        self._text = text
        self._scoring: bytes | None = None  # digest under way at the retriever
        self._roles = spec.roles
        self._num_holders = sum(spec.num_documents(voter) > 0 for voter in spec.roles.voters)

    def anchor(self, step: int) -> int:
        """The position kappa up to which the answer so far decides the weights of `step`."""
        return weight_anchor(step, self._interval, self._spec.weight_lag) if self._interval else 0

    def weights_for(self, prefix: Prefix, ids: Sequence[str], step: int | None = None) -> Weights | None:
        """The weights of these documents at `step` of `prefix`, or after it; None: still being estimated."""
        at = len(prefix) if step is None else step
        return self.weights.get(prefix.digests[self.anchor(at) if self.can_matter(ids) else 0])

    def can_matter(self, ids: Sequence[str]) -> bool:
        """Whether another estimation can change the target: not that of the only document which has any weight."""
        is_only = len(ids) == 1 and (not self._roles.weighs_by_documents or self._num_holders == 1)
        return self._interval > 0 and len(ids) > 0 and not is_only

    def request_next(self, prefix: Prefix, ids: tuple[str, ...], first_step: int | None = None) -> list[Send]:
        """Ask the retriever for the next estimation that `prefix` will need, from `first_step` or its end on."""
        if self._scoring is not None or not self.can_matter(ids):
            return []
        for position in self._needed(prefix, len(prefix) if first_step is None else first_step):
            digest = prefix.digests[position]
            if digest not in self.weights:
                self._scoring = digest
                text = text_to_score(self._spec.search_text, self._text(prefix.tokens[:position]))
                request = RescoreRequest(session=self._spec.session, digest=digest, ids=ids, text=text)
                return [Send("retriever", request)]
        return []

    def forget_request(self) -> None:
        """The request that is under way, or its answer, may be lost."""
        self._scoring = None

    def receive(self, result: RescoreResult, prefix: Prefix) -> None:
        """Take in an estimation, unless its prefix was rolled back meanwhile.

        Momentum blends it with the estimation before it on the same prefix, so that it rolls back, too.
        """
        if result.digest == self._scoring:
            self._scoring = None
        position = self._find(result.digest, prefix)
        if position is None:
            return
        momentum = self._spec.weight_momentum
        previous = self.weights.get(prefix.digests[position - self._interval]) if momentum else None
        if previous is not None or not momentum:
            self.weights[result.digest] = blend(previous, self.scale(result.scores), momentum)

    def scale(self, scores: Sequence[float]) -> Weights:
        """Weights of documents with these scores."""
        return tuple(self._spec.relevance_scale * score for score in scores)

    def forget(self, prefix: Prefix) -> None:
        """Drop weights of other prefixes."""
        current = set(prefix.digests)
        self.weights = {digest: weights for digest, weights in self.weights.items() if digest in current}

    def _needed(self, prefix: Prefix, first_step: int) -> range:
        """Lengths of the prefixes whose estimations can weigh `first_step` or a later one.

        Not those before the present weights, unless momentum hands them on, nor those that come into use after the
        last token.
        """
        spec = self._spec
        first = 0 if spec.weight_momentum else self.anchor(first_step)
        last_step = spec.sampling.max_new_tokens - 1
        if prefix.tokens and prefix.tokens[-1] in spec.eos_token_ids:
            last_step = len(prefix) - 1
        stop = min(len(prefix), last_step - spec.weight_lag) + 1
        return range(max(first, self._interval), stop, self._interval)

    def _find(self, digest: bytes, prefix: Prefix) -> int | None:
        for position in range(self._interval, len(prefix) + 1, self._interval):
            if prefix.digests[position] == digest:
                return position
        return None
