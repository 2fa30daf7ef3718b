"""Guesses a private fact from a transcript: how well does what was received fit each candidate?

The attacker has all that a cloud has by right: the model, the tokenizer, the embedder, the protocol, its own pages, the
codec, seed and options of the question. It also knows the phrases of the bundled corpora's notes, but not which one a
note has, what else it says, or which other notes there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tandem.aggregation.coupling import noise
from tandem.codecs import Codec
from tandem_lab.curious.imagined import Imagination
from tandem_lab.curious.transcripts import Drafted, Transcript
from tandem_lab.training.synthetic import Question

Floats: TypeAlias = NDArray[np.float64]
Scores: TypeAlias = Floats | None
"""Of each candidate, [kinds], the more the likelier; None where nothing of the sort was received."""
Fit: TypeAlias = Callable[[Transcript, Drafted, Floats], Floats]
"""How well one draft fits each imagined distribution [kinds, phrases, vocab]: [kinds, phrases]."""
OTHERS = 0.1
"""Share of an imagined distribution that is the mean over all candidates: other notes have a say, too."""
TIE = 1e-9


@dataclass(frozen=True, slots=True)
class Attacker:
    """Scores the candidates by one signal or another."""

    imagination: Imagination
    codec: Codec  # of the deployment, for votes that are no race lists
    privacy: float = 0.0  # of the device

    def whole(self, question: Question, transcript: Transcript) -> Scores:
        """All that came until the answer named a kind, and the answer.

        Drafts are drawn from votes, and the answer from those of both parties: beside votes they say nothing more.
        """
        last = self.stated_at(question, transcript)
        drafted = self._drafted(question, transcript, last)
        if drafted is not None or transcript.spec is None or transcript.spec.decoding.mode != "dual":
            return drafted
        return self.answer(question, transcript)

    def before(self, question: Question, transcript: Transcript) -> Scores:
        """All that came of the steps before that one."""
        return self._drafted(question, transcript, self.stated_at(question, transcript) - 1)

    def stated_at(self, question: Question, transcript: Transcript) -> int:
        """The step of the answer that names a kind; its length if none does."""
        named = set(self.imagination.kind_tokens(question))
        steps = (step for step, token in enumerate(transcript.answer) if token in named)
        return next(steps, len(transcript.answer))

    def answer(self, question: Question, transcript: Transcript) -> Scores:
        """The kind that the answer names."""
        named = transcript.answer[self.stated_at(question, transcript) :][:1]
        return np.array([float(token in named) for token in self.imagination.kind_tokens(question)])

    def read(self, question: Question, text: str) -> Scores:
        """The control: the kind that a text names."""
        return np.array([float(f" {kind} " in text) for kind in question.domain.kinds])

    def ids(self, question: Question, transcript: Transcript, last: int) -> Scores:
        """Likelihood of the drafted tokens up to and with step `last`.

        The noise of coupled drafts follows from the seed, so that an imagined distribution names its draft, unless the
        device draws with noise of its own.
        """
        drafts = [draft for draft in transcript.drafts if draft.step <= last]
        return self._fit(question, transcript, drafts, self._fit_token)

    def votes(self, question: Question, transcript: Transcript, last: int) -> Scores:
        """Cross-entropy of the distributions up to and with step `last`, relative to the imagined ones."""
        drafts = [draft for draft in transcript.drafts if draft.step <= last and draft.payload]
        return self._fit(question, transcript, drafts, self._fit_vote)

    def weights(self, question: Question, transcript: Transcript) -> Scores:
        """Distance of the first log weight, which depends on the question alone, from that of an imagined note."""
        found = [draft.log_weight for draft in transcript.drafts if draft.log_weight is not None]
        if transcript.spec is None or not found or not np.isfinite(found[0]) or self.privacy > 0:
            return None  # with a bound it says nothing of the notes
        imagined = transcript.spec.relevance_scale * self.imagination.similarities(question)
        return np.asarray(-np.abs(imagined - found[0]).min(axis=1))

    def sizes(self, question: Question, transcript: Transcript) -> Scores:
        """Distance of the bytes of ids and distributions from those that the candidate's answer would have."""
        sizes = [draft.sizes for draft in transcript.by_step().values()]
        if transcript.spec is None or not sizes:
            return None
        has_payloads = any(payload for _, payload in sizes)
        predicted = self.imagination.sizes(question, transcript.spec, self.codec, has_payloads)
        return np.array([-_distance(sizes, each) for each in predicted])

    def _drafted(self, question: Question, transcript: Transcript, last: int) -> Scores:
        found = self.votes(question, transcript, last)
        return _sum(
            [
                self.ids(question, transcript, last) if found is None else found,
                self.weights(question, transcript),
            ]
        )

    def _fit(self, question: Question, transcript: Transcript, drafts: Sequence[Drafted], fit: Fit) -> Scores:
        """The phrase that fits best counts, the same one at all steps."""
        if not drafts or transcript.spec is None:
            return None
        temperature, total = transcript.spec.sampling.temperature or 1.0, np.zeros(())
        for draft in drafts:
            imagined = self.imagination.distributions(question, draft.prefix, temperature, self.privacy)
            total = total + fit(transcript, draft, imagined.astype(np.float64))
        return np.asarray(total.max(axis=1))

    def _fit_vote(self, transcript: Transcript, draft: Drafted, imagined: Floats) -> Floats:
        """imagined: [kinds, phrases, vocab]; returns [kinds, phrases]."""
        ids, probabilities = transcript.vote(draft, self.codec, imagined.shape[2])
        return np.asarray(np.log(_with_others(imagined[:, :, ids])) @ probabilities)

    def _fit_token(self, transcript: Transcript, draft: Drafted, imagined: Floats) -> Floats:
        """As `_fit_vote`."""
        assert transcript.spec is not None
        likelihood = imagined[:, :, draft.token]
        has_own_noise = self.privacy > 0 and not draft.payload
        if transcript.spec.rules.drawing_rule == "coupled" and not has_own_noise:
            is_greedy = transcript.spec.sampling.temperature == 0
            clocks = (
                1.0 if is_greedy else noise(transcript.spec.seed, draft.step, np.arange(imagined.shape[2]))
            )
            likelihood = (imagined / clocks).argmax(axis=2) == draft.token
        return np.asarray(np.log(_with_others(likelihood)))


def guess(scores: NDArray[np.float64], random: Random) -> int:
    """The best candidate; one of the best by lot."""
    return int(random.choice(np.flatnonzero(scores >= scores.max() - TIE).tolist()))


def _with_others(likelihood: NDArray[Any]) -> Floats:
    """[kinds, phrases, ...]"""
    mixed = (1 - OTHERS) * likelihood + OTHERS * likelihood.mean(axis=(0, 1))
    return np.asarray(np.maximum(mixed, np.finfo(np.float32).tiny))


def _sum(signals: Sequence[Scores]) -> Scores:
    received = [signal for signal in signals if signal is not None]
    return np.asarray(np.sum(received, axis=0)) if received else None


def _distance(observed: Sequence[tuple[int, int]], predicted: Sequence[tuple[int, int]]) -> float:
    """Bytes, step by step; a step that one lacks counts in full."""
    length = max(len(observed), len(predicted))
    padded = [np.array([*sizes, *[(0, 0)] * (length - len(sizes))]) for sizes in (observed, predicted)]
    return float(np.abs(padded[0] - padded[1]).sum())
