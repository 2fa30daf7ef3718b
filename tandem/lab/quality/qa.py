"""Exact match and F1 of answers to questions, and how probable the wanted answer was, by method.

Answers of both sides together go through the protocol's own state machines (`local.LocalPair`); with coupled drafts a
cluster gives the same tokens. With context aggregation one model answers alone. Knows nothing of command lines or Ray.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from tokenizers import Tokenizer

from tandem.codecs import Codec
from tandem.config import Config
from tandem.engine.drafter import Drafter
from tandem.engine.engine import Engine
from tandem.engine.tokenizer import Detokenizer, StopRule
from tandem.lab.numbers import mean
from tandem.lab.quality import statistics
from tandem.lab.quality.aggregation import Floats
from tandem.lab.quality.answers import exact_match, f1
from tandem.lab.quality.document_sets import Counts, DocumentSet, search
from tandem.lab.quality.lm import Progress, row
from tandem.lab.quality.local import LocalPair
from tandem.lab.quality.methods import Method
from tandem.lab.quality.questions import Question
from tandem.lab.quality.result import Result, Share
from tandem.lab.quality.setup import Parties
from tandem.lab.quality.teacher_forcing import Case, Teacher
from tandem.protocol.prefix import Prefix
from tandem.protocol.spec import SessionSpec
from tandem.request import spec_of
from tandem.topology import PARTIES, Party


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One answer; `as_dict` is its line in predictions.jsonl."""

    question: Question
    method: str
    counts: Counts
    given: str
    losses: Floats  # -log p of each token of the first answer that counts as right

    @property
    def is_exact(self) -> bool:
        """Normalised exact match."""
        return exact_match(self.given, self.question.answers)

    def as_dict(self) -> dict[str, object]:
        """Plain values."""
        return {
            "question": self.question.text,
            "answers": list(self.question.answers),
            "method": self.method,
            "device_documents": self.counts.device,
            "cloud_documents": self.counts.cloud,
            "given": self.given,
            "exact": self.is_exact,
            "f1": f1(self.given, self.question.answers),
            "answer_loss": float(self.losses.sum()),
            "answer_tokens": len(self.losses),
        }


def evaluate_questions(
    parties: Parties,
    questions: Sequence[Question],
    methods: Mapping[str, Method],
    counts: Sequence[Counts],
    config: Config,
    *,
    progress: Progress = lambda done, total: None,
) -> Result:
    """Ask every question by every method with every number of documents. Raises TandemError."""
    asked: dict[tuple[str, Counts], list[Prediction]] = defaultdict(list)
    teacher = Teacher(parties.engines, config.weights)
    for number, question in enumerate(questions):
        progress(number, len(questions))
        for one in predictions(parties, question, methods, counts, config, teacher, seed=number):
            asked[one.method, one.counts].append(one)
    progress(len(questions), len(questions))
    return Result(
        kind="qa",
        what=_what(parties, questions, config),
        rows=tuple(
            replace(
                row(methods[name], name, each, [one.losses for one in asked[name, each]]),
                exact=_share([one.is_exact for one in asked[name, each]]),
                f1=mean([f1(one.given, one.question.answers) for one in asked[name, each]]),
            )
            for each in counts
            for name in methods
        ),
        comparisons=tuple(_comparisons(asked, methods, counts)),
        notes=tuple(teacher.notes.sentences()),
        predictions=tuple(one.as_dict() for ones in asked.values() for one in ones),
    )


def predictions(
    parties: Parties,
    question: Question,
    methods: Mapping[str, Method],
    counts: Sequence[Counts],
    config: Config,
    teacher: Teacher,
    *,
    seed: int = 0,
) -> list[Prediction]:
    """The answers to one question. teacher: scores the right ones, and notes what did not fit. seed: of what is drawn
    at temperatures above 0.
    """
    found = search(parties.retrievers, question.text, counts, is_halved=False)
    tokenizer = Tokenizer.from_str(parties.engines[Party.DEVICE].tokenizer_json)
    wanted = tuple(tokenizer.encode(f" {question.answers[0]}", add_special_tokens=False).ids)
    case = Case(question.text, question.text, wanted)
    losses = teacher.losses(case, found, methods, counts)
    spec = replace(
        spec_of(config),
        query=question.text,
        seed=seed,
        synchronous=True,
        placement="device",
        on_peer_loss="continue",
        eos_token_ids=tuple(parties.engines[Party.DEVICE].eos_token_ids),
    )
    return [
        Prediction(
            question=question,
            method=name,
            counts=each,
            given=(
                told_text(parties.engines[Party.DEVICE], wanted, losses[name, each])
                if method.is_ideal
                else _answer(parties, method, each, found, spec)
            ),
            losses=losses[name, each],
        )
        for name, method in methods.items()
        for each in counts
    ]


def _answer(parties: Parties, method: Method, counts: Counts, found: DocumentSet, spec: SessionSpec) -> str:
    if method.is_context:
        engine = parties.engines[method.parties[0] if method.parties else Party.DEVICE]
        documents = [each for party in method.parties for each in found.documents(party, counts)]
        return answer_alone(engine, parties.codec, spec, found.join_texts(documents, spec.query))
    used = {party: counts.of(party) if party in method.parties else 0 for party in PARTIES}
    is_static = method.weights == "static"
    spec = replace(
        spec,
        documents={str(party): count for party, count in used.items()},
        layouts=dict.fromkeys(map(str, PARTIES), method.layout),
        question_weight=0.0 if is_static else spec.question_weight,
        evidence_weight=0.0 if is_static else spec.evidence_weight,
    )
    pair = LocalPair(parties.engines, parties.retrievers, parties.codec)
    return pair.answer(spec)[0]


def told_text(engine: Engine, wanted: Sequence[int], losses: Floats) -> str:
    """Those tokens of the wanted answer that get more than half of the probability, as text.

    Less could be luck: of many rows that know nothing, some have any token on top. losses: -log p, [tokens].
    """
    told = [token for token, loss in zip(wanted, losses, strict=True) if loss < math.log(2)]
    return engine.text(told).strip()


def answer_alone(engine: Engine, codec: Codec, spec: SessionSpec, document: str) -> str:
    """The answer of one model from one row, compressed and drawn as a lone side's would be. document: "" for none."""
    rule = StopRule.of(spec.eos_token_ids, spec.sampling, Detokenizer(engine.tokenizer_json))
    drafter = Drafter(spec.codec_of_votes(codec), spec.sampling, spec.draft_rule, spec.vocab_size)
    key, prefix = "alone", Prefix(0)
    tokens = prefix.tokens
    engine.open(key, spec.query, [document] if document else [], spec.sampling.max_new_tokens, num_stored=0)
    try:
        while rule.find_reason(tokens) is None:
            logits = engine.next_logits(key, tokens)
            draft = drafter.draft(
                logits,
                [0.0],
                seed=spec.seed,
                step=len(prefix),
                party=Party.DEVICE,
                lineage=prefix.digests,
            )
            prefix.append(draft.token)
    finally:
        engine.close(key)
    return rule.text(tokens).strip()


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
            right = [[one.is_exact for one in asked[which, each]] for which in ("evidence", name)]
            only_own, only_other, p_value = statistics.mcnemar(*right)
            sentences.append(
                f"{each.device} + {each.cloud} documents, exact: only evidence weights {only_own}, "
                f"only {name} {only_other}, McNemar p = {p_value:.2g}."
            )
    return sentences


def _share(values: Sequence[bool]) -> Share:
    interval = statistics.wilson(sum(values), len(values)) if len(values) > 1 else None
    return Share(value=sum(values) / len(values), interval=interval)


def _what(parties: Parties, questions: Sequence[Question], config: Config) -> dict[str, object]:
    return {
        "models": {party.value: parties.engines[party].name for party in PARTIES},
        "questions": len(questions),
        "temperature": config.sampling.temperature,
        "codec": spec_of(config).codec_of_votes(parties.codec).fingerprint(),
        "weights": asdict(config.weights),
    }
