"""How probable each method holds the tokens of a known continuation: a window of a text, or the answer to a question.

The real engine, weights and mixture, one forward pass per row instead of one per token. A document's row does not
depend on how many others there are, so all numbers of documents share the same rows. At temperature 1 and before
compression: a nucleus gives what lies outside it probability 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tandem.aggregation.document_weights import DocumentWeights, log_evidence, question_likelihood
from tandem.config.schema import WeightsConfig
from tandem.engine.engine import Engine
from tandem.engine.model import model_of
from tandem.engine.prompt import Prompt
from tandem.topology import PARTIES, Party
from tandem_lab.quality.aggregation import (
    DynamicWeights,
    Floats,
    PartyTokens,
    evidence_by_step,
    party_tokens,
    relevance_by_step,
    target_tokens,
    text_to_score,
)
from tandem_lab.quality.document_sets import Counts, DocumentSet
from tandem_lab.quality.methods import Method

MAX_LOGITS = 1 << 26
"""Logits of one pass, at most (256 MiB of float32); a single row may have more."""


@dataclass(frozen=True, slots=True)
class Case:
    """A continuation to be scored."""

    query: str  # what documents are retrieved and scored for
    prompt: (
        str | tuple[int, ...]
    )  # what stands in a row before the continuation: a question, or ids as they are
    tokens: tuple[int, ...]  # the continuation, and all that is scored


@dataclass(slots=True)
class Notes:
    """What did not fit, over all cases."""

    num_truncated: int = 0  # rows whose document was cut at its end
    num_dropped: int = 0  # documents without a row

    def sentences(self) -> list[str]:
        """For people."""
        cut = f"{self.num_truncated} rows were cut at the end of their documents to fit the model's context."
        left = f"{self.num_dropped} rows had no room for a document beside the text."
        return [cut] * (self.num_truncated > 0) + [left] * (self.num_dropped > 0)


@dataclass(slots=True)
class Teacher:
    """Scores cases by any method."""

    engines: Mapping[Party, Engine]
    weights: WeightsConfig
    clip: Callable[[str], str] = lambda text: (
        text
    )  # cuts joined documents to the budget of context aggregation
    notes: Notes = field(default_factory=Notes)
    dynamic: DynamicWeights = field(default_factory=DynamicWeights)  # of the method of that name

    def losses(
        self, case: Case, found: DocumentSet, methods: Mapping[str, Method], counts: Sequence[Counts]
    ) -> dict[tuple[str, Counts], Floats]:
        """-log p of each token of `case` by method and numbers of documents, [tokens] each."""
        work = _Case(self, case, found)
        work.prepare([(method, each) for method in methods.values() for each in counts])
        return {
            (name, each): -work.log_probabilities(method, each)
            for name, method in methods.items()
            for each in counts
        }


class _Case:
    """One case with the rows and weights that were computed for it."""

    def __init__(self, teacher: Teacher, case: Case, found: DocumentSet) -> None:
        self._teacher, self._case, self._found = teacher, case, found
        self._rows: dict[tuple[int, int | str], Floats] = {}  # engine, document or text -> [tokens]
        self._questions: dict[tuple[int, int | str], float] = {}  # what the question counts there
        self._relevance: Floats | None = None  # [tokens, documents], of dynamic weights

    def prepare(self, wanted: Iterable[tuple[Method, Counts]]) -> None:
        """Compute the rows of all documents that have one of their own, an engine at a time."""
        needed: dict[int, set[int]] = {}
        for method, counts in wanted:
            for party in () if method.is_context else method.parties:
                documents = self._found.documents(party, counts)
                needed.setdefault(id(self._teacher.engines[party]), set()).update(documents)
        for engine in {id(each): each for each in self._teacher.engines.values()}.values():
            ordered = sorted(needed.get(id(engine), ()))
            if ordered:
                self._force(engine, ordered)

    def log_probabilities(self, method: Method, counts: Counts) -> Floats:
        """log p of each token, [tokens]."""
        if method.is_context:
            return self._context(method, counts)
        if method.is_ideal:
            return self._ideal(method, counts)
        parties = {party: self._party(party, counts, method) for party in PARTIES}
        return target_tokens(parties[Party.DEVICE], parties[Party.CLOUD])

    def _context(self, method: Method, counts: Counts) -> Floats:
        """One row with all documents joined; on the device unless they are the cloud's alone."""
        engine = self._teacher.engines[method.parties[0] if method.parties else Party.DEVICE]
        query = self._case.query
        documents = self._found.of_one_prompt(method.parties, counts, method.pick, query)
        return self._row(engine, self._teacher.clip(self._found.join_texts(documents, query)))

    def _ideal(self, method: Method, counts: Counts) -> Floats:
        """Each token by the document's row that holds it most probable, which no weights can do better than."""
        sides = [self._party_rows(party, counts, method) for party in PARTIES]
        rows = [log_p for kept, log_p in sides if kept] or [log_p for _, log_p in sides]
        return np.asarray(np.concatenate(rows).max(axis=0))

    def _party(self, party: Party, counts: Counts, method: Method) -> PartyTokens:
        kept, log_p = self._party_rows(party, counts, method)
        if not kept:
            return party_tokens(log_p, None)
        if method.weights == "dynamic":
            return party_tokens(log_p, self._dynamic()[:, [each for each in kept if isinstance(each, int)]])
        rule = self._rule(party, counts, kept, method)
        return party_tokens(log_p, evidence_by_step(log_p, rule))

    def _rule(
        self, party: Party, counts: Counts, kept: Sequence[int | str], method: Method
    ) -> DocumentWeights:
        """The weights of rows: of documents, of several joined, or of none."""
        weights, engine = self._teacher.weights, self._teacher.engines[party]
        scores = self._found.scores(self._case.query)
        own = [scores[each] for each in self._documents(party, counts, method)]
        is_static = method.weights == "static"
        prior = [
            weights.scale * (scores[row] if isinstance(row, int) else max(own) if row else min(own))
            for row in kept
        ]
        strength = max(0.0, weights.question)  # what is left open counts as for the toys
        question = [] if is_static else [strength * self._question(engine, row) for row in kept]
        evidence = 0.0 if is_static else weights.evidence
        return DocumentWeights(tuple(prior), evidence, weights.memory, tuple(question))

    def _question(self, engine: Engine, row: int | str) -> float:
        """What the question counts in a row: against one without document where the parties' models differ."""
        likelihood = self._questions[id(engine), row]
        if len({id(each) for each in self._teacher.engines.values()}) == 1:
            return likelihood
        self._row(engine, "")
        return likelihood - self._questions[id(engine), ""]

    def _party_rows(self, party: Party, counts: Counts, method: Method) -> tuple[list[int | str], Floats]:
        """What stands in a party's rows (a document, a text, or nothing), and the rows [rows, tokens]; the bare row
        where there is no document."""
        engine, documents = self._teacher.engines[party], self._documents(party, counts, method)
        kept: list[int | str] = [*documents]
        if method.layout != "rows" and kept:
            joined = self._found.join_texts(documents, self._case.query)
            both = [*kept, joined, ""] if len(kept) > 1 else [*kept, ""]
            kept = [joined] if method.layout == "joined" else both
        rows = [self._row(engine, each) for each in kept] or [self._row(engine, "")]
        return kept, np.stack(rows)

    def _documents(self, party: Party, counts: Counts, method: Method) -> list[int]:
        """Those of a party that have room for a row."""
        documents = self._found.documents(party, counts) if party in method.parties else ()
        return [each for each in documents if (id(self._teacher.engines[party]), each) in self._rows]

    def _row(self, engine: Engine, what: int | str) -> Floats:
        """The row of a document or a text, or of no document where it is empty."""
        key = (id(engine), what)
        if key not in self._rows:
            self._force(engine, [what])
        return self._rows[key]

    def _force(self, engine: Engine, documents: Sequence[int | str]) -> None:
        """Compute the rows of documents or texts; those without room have none, a single text then the bare one."""
        texts = [self._found.texts[each] if isinstance(each, int) else each for each in documents]
        prompt = engine.build_prompt(self._case.prompt, texts, len(self._case.tokens))
        self._teacher.notes.num_truncated += len(prompt.truncated)
        self._teacher.notes.num_dropped += len(prompt.dropped)
        rows, questions = force_tokens(engine, prompt, self._case.tokens)
        kept = [documents[place] for place in prompt.documents]
        if not kept and isinstance(documents[0], str):
            kept = [documents[0]]
        for each, row, question in zip(kept, rows, questions, strict=False):
            self._rows[id(engine), each], self._questions[id(engine), each] = row, question

    def _dynamic(self) -> Floats:
        """The paper's weights of all documents, [tokens, documents]."""
        if self._relevance is None:
            raw = relevance_by_step(len(self._case.tokens), self._estimate, self._teacher.dynamic)
            self._relevance = self._teacher.weights.scale * raw
        return self._relevance

    def _estimate(self, length: int) -> list[float]:
        """Scores of all documents for the query and the first `length` tokens of the continuation."""
        answer = self._teacher.engines[Party.DEVICE].text(self._case.tokens[:length])
        return self._found.scores(text_to_score(self._case.query, answer))


def force_tokens(
    engine: Engine, prompt: Prompt, tokens: Sequence[int]
) -> tuple[NDArray[np.float64], list[float]]:
    """log p(x_t | row, x_<t) at temperature 1 of each of `tokens`, [rows, tokens]; opens no session. And what the
    question counts in each row.

    The softmax runs in float32 over the engine's vocabulary, as in `row_mixture.mix_rows`. GenerationError if a token
    is outside of it.
    """
    engine.check_tokens(tokens)
    num_question = max(0, prompt.num_question - 1)
    scored = [*prompt.query_tokens[len(prompt.query_tokens) - num_question :], *tokens]
    rows = [[*document, *prompt.query_tokens, *tokens[:-1]] for document in prompt.document_tokens]
    at_once = max(1, MAX_LOGITS // (len(scored) * engine.vocab_size))
    parts = [
        _force_block(model_of(engine.runner), rows[i : i + at_once], scored, engine.vocab_size)
        for i in range(0, len(rows), at_once)
    ]
    log_p = np.concatenate(parts)
    questions = [
        question_likelihood(sum(log_evidence(np.exp(row).tolist())), num_question)
        for row in log_p[:, :num_question]
    ]
    return log_p[:, num_question:], questions


def _force_block(
    model: Any, rows: list[list[int]], tokens: Sequence[int], vocab_size: int
) -> NDArray[np.float64]:
    """Rows padded on the left, so that all end together; [rows, tokens]."""
    width = max(len(row) for row in rows)
    pads = torch.tensor([width - len(row) for row in rows], device=model.device)
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows], device=model.device)
    columns = torch.arange(width, device=model.device)
    mask = (columns[None, :] >= pads[:, None]).long()  # [rows, width]
    positions = (columns[None, :] - pads[:, None]).clamp_(min=0)  # [rows, width]
    with torch.inference_mode():
        output = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            use_cache=False,
            logits_to_keep=len(tokens),
        )
        # [rows, tokens, vocab]; the first follows the prompt
        logits = output.logits[:, :, :vocab_size].float()
        targets = torch.tensor(list(tokens), device=model.device).expand(len(rows), -1)
        log_p = torch.log_softmax(logits, dim=-1).gather(2, targets[:, :, None])[:, :, 0]
    return np.asarray(log_p.double().cpu().numpy())
