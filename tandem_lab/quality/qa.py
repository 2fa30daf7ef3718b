"""How many questions are answered right, and what an answer costs, by method.

An answer is right if it contains an accepted text; exact match and F1 are for models that answer in a fixed form.
Answers of both sides together go through the protocol's own state machines (`local.LocalPair`); with coupled drafts a
cluster gives the same tokens. With context aggregation one model answers alone. Knows nothing of command lines or Ray.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

import numpy as np

from tandem.client.request import spec_of
from tandem.codecs import Codec
from tandem.config.schema import Config
from tandem.engine.drafter import Drafter, DraftPlace
from tandem.engine.engine import Engine
from tandem.engine.prompt import Prompt
from tandem.engine.tokenizer import StopRule
from tandem.modes import SessionSpec
from tandem.protocol.log import Prefix
from tandem.topology import PARTIES, Party
from tandem_lab.errors import EvaluationError
from tandem_lab.numbers import mean
from tandem_lab.quality import statistics
from tandem_lab.quality.document_sets import Counts, DocumentSet, search
from tandem_lab.quality.local import LocalPair
from tandem_lab.quality.methods import NUM_PASSAGES, Method
from tandem_lab.quality.questions import Question, contains_answer, exact_match, f1
from tandem_lab.quality.result import Result, Row, Share
from tandem_lab.quality.rules import RULES, Choose, PartyRows, log_rows
from tandem_lab.quality.setup import Parties

Progress = Callable[[int, int], object]


@dataclass(slots=True)
class Notes:
    """What did not fit, over all questions."""

    num_truncated: int = 0  # rows whose document was cut at its end
    num_dropped: int = 0  # documents without a row

    def add(self, opened: Prompt) -> None:
        """What a session says of its rows."""
        self.num_truncated += len(opened.truncated)
        self.num_dropped += len(opened.dropped)

    def sentences(self) -> list[str]:
        """For people."""
        cut = f"{self.num_truncated} rows were cut at the end of their documents to fit the model's context."
        left = f"{self.num_dropped} rows had no room for a document beside the text."
        return [cut] * (self.num_truncated > 0) + [left] * (self.num_dropped > 0)


class Answer(NamedTuple):
    """What one method said, and at what cost."""

    text: str
    num_tokens: int = 0
    seconds: float = 0.0  # of processor time, both sides together
    num_bytes: int = 0  # that crossed the link


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One answer; `as_dict` is its line in predictions.jsonl."""

    question: Question
    method: str
    counts: Counts
    given: str
    num_tokens: int = 0
    seconds: float = 0.0  # of processor time
    num_bytes: int = 0

    @property
    def is_right(self) -> bool:
        """Whether it contains an answer that is accepted."""
        return contains_answer(self.given, self.question.answers)

    @property
    def is_exact(self) -> bool:
        """Normalised exact match."""
        return exact_match(self.given, self.question.answers)

    def as_dict(self) -> dict[str, object]:
        """Plain values."""
        return {
            "id": self.question.id,
            "question": self.question.text,
            "answers": list(self.question.answers),
            "needs": self.question.needs,
            "language": self.question.language,
            "method": self.method,
            "device_documents": self.counts.device,
            "cloud_documents": self.counts.cloud,
            "given": self.given,
            "right": self.is_right,
            "exact": self.is_exact,
            "f1": f1(self.given, self.question.answers),
            "tokens": self.num_tokens,
            "seconds": round(self.seconds, 4),
            "bytes": self.num_bytes,
        }


def evaluate_questions(
    parties: Parties,
    questions: Sequence[Question],
    methods: Mapping[str, Method],
    counts: Sequence[Counts],
    config: Config,
    *,
    num_passages: int = NUM_PASSAGES,
    progress: Progress = lambda done, total: None,
) -> Result:
    """Ask every question by every method with every number of documents. Raises TandemError.

    num_passages: passages of plain RAG.
    """
    check_sources(questions, methods)
    asked: dict[tuple[str, Counts], list[Prediction]] = defaultdict(list)
    notes = Notes()
    for number, question in enumerate(questions):
        progress(number, len(questions))
        for one in predictions(
            parties,
            question,
            methods,
            counts,
            config,
            notes,
            seed=number,
            num_passages=num_passages,
        ):
            asked[one.method, one.counts].append(one)
    progress(len(questions), len(questions))
    return Result(
        what=_what(parties, questions, config) | ({"rag_passages": num_passages} if "rag" in methods else {}),
        rows=tuple(_row(methods[name], name, each, asked[name, each]) for each in counts for name in methods),
        comparisons=tuple(_comparisons(asked, methods, counts)),
        notes=tuple(notes.sentences()),
        predictions=tuple(one.as_dict() for ones in asked.values() for one in ones),
    )


def predictions(
    parties: Parties,
    question: Question,
    methods: Mapping[str, Method],
    counts: Sequence[Counts],
    config: Config,
    notes: Notes,
    *,
    seed: int = 0,
    num_passages: int = NUM_PASSAGES,
) -> list[Prediction]:
    """The answers to one question. notes: counts what did not fit. seed: of what is drawn at temperatures above 0.
    num_passages: passages of plain RAG.
    """
    picks = {method.pick for method in methods.values()}
    found = search(
        parties.retrievers,
        question.text,
        counts,
        num_passages=num_passages if "best" in picks else int("each" in picks),
        sources=question.sources if "right" in picks else (),
    )
    asking = _Asking(parties, found, notes, config.device.privacy)
    spec = replace(
        spec_of(config),
        query=question.text,
        seed=seed,
        decoding=replace(config.decoding, max_window=1, placement="device"),
        on_peer_loss="continue",
        eos_token_ids=tuple(parties.engines[Party.DEVICE].eos_token_ids),
    )
    asking.read(spec, methods, counts)
    answered = []
    for name, method in methods.items():
        for each in counts:
            answer = asking.answer(spec, method, each)
            answered.append(
                Prediction(
                    question=question,
                    method=name,
                    counts=each,
                    given=answer.text,
                    num_tokens=answer.num_tokens,
                    seconds=answer.seconds,
                    num_bytes=answer.num_bytes,
                )
            )
    return answered


def check_sources(questions: Sequence[Question], methods: Mapping[str, Method]) -> None:
    """Raises EvaluationError where a method needs the documents that hold an answer, and a question names none."""
    for name, method in methods.items():
        for question in questions if method.pick == "right" else ():
            if not question.sources:
                raise EvaluationError(
                    f'The method {name} needs questions that name the "sources" of their answers, but '
                    f"{question.text!r} names none; add them, or leave {name} out."
                )


class _Asking:
    """One question asked by several methods, which share what was found."""

    def __init__(self, parties: Parties, found: DocumentSet, notes: Notes, privacy: float = 0.0) -> None:
        """notes: counts what did not fit. privacy: as of a `LocalPair`."""
        self._parties, self._found, self._notes, self._privacy = parties, found, notes, privacy
        self._answers: dict[tuple[int, str], Answer] = {}  # of one prompt, by engine and documents

    def read(self, spec: SessionSpec, methods: Mapping[str, Method], counts: Sequence[Counts]) -> None:
        """Read every document that has a row of its own, so that no method is charged for what all of them share."""
        texts: dict[Engine, dict[str, None]] = {}
        for method in methods.values():
            for party in () if method.is_context else method.parties:
                read = texts.setdefault(self._parties.engines[party], {})
                for each in counts:
                    read.update(
                        (self._found.texts[place], None) for place in self._found.documents(party, each)
                    )
        for engine, read in texts.items():
            if not read:
                continue
            opened = engine.open("read", spec.query, list(read), spec.sampling.max_new_tokens)
            try:
                engine.next_logits("read", ())
            finally:
                engine.close("read")
            self._notes.add(opened)

    def answer(self, spec: SessionSpec, method: Method, counts: Counts) -> Answer:
        """By one method."""
        if method.is_context:
            return self._answer_alone(spec, method, counts)
        if method.rule:
            return self._answer_by_rule(spec, method, counts)
        used = {party: counts.of(party) if party in method.parties else 0 for party in PARTIES}
        is_alone = (
            method.parties == PARTIES and not counts.cloud and len(set(self._parties.engines.values())) == 1
        )
        is_static = method.weights == "static"
        spec = replace(
            spec,
            only=Party.DEVICE
            if is_alone
            else None,  # as a device answers to which its cloud would add nothing
            documents={str(party): count for party, count in used.items()},
            layouts=dict.fromkeys(map(str, PARTIES), method.layout),
            question_weight=0.0 if is_static else spec.question_weight,
            evidence_weight=0.0 if is_static else spec.evidence_weight,
        )
        pair = LocalPair(self._parties.engines, self._parties.retrievers, self._parties.codec, self._privacy)
        started_s = time.process_time()
        if method.steps == "never":
            text, outcome = pair.answer(spec)
        else:
            answer, outcome = pair.answer_in_steps(spec, always=method.steps == "always")
            text = answer.text
        num_tokens = len(outcome.tokens[Party(spec.home)])
        return Answer(text, num_tokens, time.process_time() - started_s, outcome.num_bytes)

    def _answer_by_rule(self, spec: SessionSpec, method: Method, counts: Counts) -> Answer:
        """By a rule of one token."""
        scores = self._found.scores()
        texts, relevance = dict[Party, list[str]](), dict[Party, list[float]]()
        for party in method.parties:
            if documents := self._found.documents(party, counts):
                texts[party] = [self._found.texts[place] for place in documents]
                relevance[party] = [scores[place] for place in documents]
        if not texts:
            return self._answer_alone(spec, method, counts)
        return answer_by_rule(self._parties.engines, spec, RULES[method.rule], texts, relevance, self._notes)

    def _answer_alone(self, spec: SessionSpec, method: Method, counts: Counts) -> Answer:
        """From one prompt; the same one is asked once."""
        engine = self._parties.engines[method.parties[0] if method.parties else Party.DEVICE]
        documents = self._found.of_one_prompt(method.parties, counts, method.pick)
        text = self._found.join_texts(documents)
        if (key := (id(engine), text)) not in self._answers:
            self._answers[key] = answer_alone(engine, self._parties.codec, spec, text, self._notes)
        return self._answers[key]


def answer_alone(engine: Engine, codec: Codec, spec: SessionSpec, document: str, notes: Notes) -> Answer:
    """The answer of one model from one row, compressed and drawn as a lone side's would be. document: "" for none.

    notes: counts a document that did not fit.
    """
    started_s = time.process_time()
    rule = StopRule.of(spec.eos_token_ids, spec.sampling, engine.detokenizer)
    drafter = Drafter(
        spec.rules.codec_of_votes(codec), spec.sampling, spec.rules.drawing_rule, spec.vocab_size
    )
    key, prefix = "alone", Prefix(0)
    tokens = prefix.tokens
    opened = engine.open(
        key, spec.query, [document] if document else [], spec.sampling.max_new_tokens, num_stored=0
    )
    notes.add(opened)
    try:
        while rule.find_reason(tokens) is None:
            logits = engine.next_logits(key, tokens)
            place = DraftPlace(spec.seed, len(prefix), Party.DEVICE, prefix.digests)
            draft = drafter.draft(logits, [0.0], place)
            assert draft.token is not None, "a draft has one"
            prefix.append(draft.token)
    finally:
        engine.close(key)
    return Answer(rule.text(tokens).strip(), len(tokens), time.process_time() - started_s)


def answer_by_rule(
    engines: Mapping[Party, Engine],
    spec: SessionSpec,
    choose: Choose,
    texts: Mapping[Party, Sequence[str]],
    relevance: Mapping[Party, Sequence[float]],
    notes: Notes,
) -> Answer:
    """The answer of rows of documents and one without any at each party, by a rule of one token.

    texts, relevance: of the documents of each party that has some. notes: counts documents that did not fit.
    """
    started_s, first, tokens = time.process_time(), dict[Party, PartyRows](), list[int]()
    rule = StopRule.of(spec.eos_token_ids, spec.sampling, engines[Party.DEVICE].detokenizer)
    kept = dict[Party, list[float]]()
    try:
        for party, documents in texts.items():
            opened = engines[party].open(
                f"rule/{party}", spec.query, [*documents, ""], spec.sampling.max_new_tokens
            )
            notes.add(opened)
            kept[party] = [relevance[party][place] for place in opened.documents if place < len(documents)]
        while rule.find_reason(tokens) is None:
            rows = {}
            for party in texts:
                logits = np.asarray(engines[party].next_logits(f"rule/{party}", tokens))[:, : spec.vocab_size]
                *documents_, bare = log_rows(logits)
                rows[party] = PartyRows(np.asarray(documents_), bare, kept[party])
            first = first or rows
            tokens.append(choose(rows, first))
    finally:
        for party in texts:
            engines[party].close(f"rule/{party}")
    return Answer(rule.text(tokens).strip(), len(tokens), time.process_time() - started_s)


def _row(method: Method, name: str, counts: Counts, answers: Sequence[Prediction]) -> Row:
    """One method's answers with so many documents."""
    return Row(
        method=name,
        label=method.label,
        counts=counts,
        right=_share([one.is_right for one in answers]),
        exact=_share([one.is_exact for one in answers]),
        f1=mean([f1(one.given, one.question.answers) for one in answers]),
        by_needs=_share_by([(one.question.needs, one.is_right) for one in answers]),
        by_language=_share_by([(one.question.language, one.is_right) for one in answers]),
        seconds=mean([one.seconds for one in answers]),
        num_tokens=mean([one.num_tokens for one in answers]),
        num_bytes=mean([one.num_bytes for one in answers]),
    )


def _comparisons(
    asked: Mapping[tuple[str, Counts], Sequence[Prediction]],
    methods: Mapping[str, Method],
    counts: Sequence[Counts],
) -> list[str]:
    """Paired, by McNemar's test: Tandem's weights against every other method."""
    sentences = []
    for each in counts:
        for name in methods if "evidence" in methods else ():
            if name == "evidence":
                continue
            right = [[one.is_right for one in asked[which, each]] for which in ("evidence", name)]
            only_own, only_other, p_value = statistics.mcnemar(*right)
            sentences.append(
                f"{each.device} + {each.cloud} documents, right: only evidence weights {only_own}, "
                f"only {name} {only_other}, McNemar p = {p_value:.2g}."
            )
    return sentences


def _share(values: Sequence[bool]) -> Share:
    interval = statistics.wilson(sum(values), len(values)) if len(values) > 1 else None
    return Share(value=sum(values) / len(values), interval=interval, count=len(values))


def _share_by(pairs: Sequence[tuple[str, bool]]) -> dict[str, Share]:
    """The share of each label, in their order; without the questions that have none."""
    labels = dict.fromkeys(label for label, _ in pairs if label)
    return {label: _share([value for other, value in pairs if other == label]) for label in sorted(labels)}


def _what(parties: Parties, questions: Sequence[Question], config: Config) -> dict[str, object]:
    return {
        "models": {party.value: parties.engines[party].name for party in PARTIES},
        "questions": len(questions),
        "temperature": config.sampling.temperature,
        "max_new_tokens": config.sampling.max_new_tokens,
        "codec": spec_of(config).rules.codec_of_votes(parties.codec).fingerprint(),
        "weights": asdict(config.weights),
    }
