"""Exact match and F1 of answers to questions, and how probable the wanted answer was, by method.

Answers of both sides together go through the protocol's own state machines (`local.LocalPair`); with coupled drafts a
cluster gives the same tokens. With context aggregation one model answers alone. Knows nothing of command lines or Ray.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from tokenizers import Tokenizer

from tandem.aggregation.codec import Codec
from tandem.aggregation.rules import draft_rule
from tandem.config import Config
from tandem.evaluation import statistics
from tandem.evaluation.aggregation import Floats
from tandem.evaluation.answers import exact_match, f1
from tandem.evaluation.found import Counts, Found, search
from tandem.evaluation.lm import Progress, row
from tandem.evaluation.local import LocalPair
from tandem.evaluation.methods import Method
from tandem.evaluation.questions import Question
from tandem.evaluation.result import Result, Share
from tandem.evaluation.sides import Sides
from tandem.evaluation.teacher import Case, Teacher
from tandem.generation.detokenizer import Detokenizer, StopRule
from tandem.generation.engine import Engine
from tandem.generation.mixing import side_law
from tandem.protocol.spec import SessionSpec
from tandem.query import spec_of
from tandem.side import SIDES, Side


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
    sides: Sides,
    questions: Sequence[Question],
    methods: Mapping[str, Method],
    counts: Sequence[Counts],
    config: Config,
    *,
    progress: Progress = lambda done, total: None,
) -> Result:
    """Ask every question by every method with every number of documents. Raises TandemError."""
    asked: dict[tuple[str, Counts], list[Prediction]] = defaultdict(list)
    teacher = Teacher(sides.engines, config.weights)
    for number, question in enumerate(questions):
        progress(number, len(questions))
        for one in predictions(sides, question, methods, counts, config, teacher, seed=number):
            asked[one.method, one.counts].append(one)
    progress(len(questions), len(questions))
    return Result(
        kind="qa",
        what=_what(sides, questions, config),
        rows=tuple(
            replace(
                row(methods[name], name, each, [one.losses for one in asked[name, each]]),
                exact=_share([one.is_exact for one in asked[name, each]]),
                f1=_mean([f1(one.given, one.question.answers) for one in asked[name, each]]),
            )
            for each in counts
            for name in methods
        ),
        comparisons=tuple(_comparisons(asked, methods, counts)),
        notes=tuple(teacher.notes.sentences()),
        predictions=tuple(one.as_dict() for ones in asked.values() for one in ones),
    )


def predictions(
    sides: Sides,
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
    found = search(sides.retrievers, question.text, counts, is_halved=False)
    tokenizer = Tokenizer.from_str(sides.engines[Side.DEVICE].tokenizer_json)
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
        eos_token_ids=tuple(sides.engines[Side.DEVICE].eos_token_ids),
    )
    return [
        Prediction(
            question=question,
            method=name,
            counts=each,
            given=_answer(sides, method, each, found, spec),
            losses=losses[name, each],
        )
        for name, method in methods.items()
        for each in counts
    ]


def _answer(sides: Sides, method: Method, counts: Counts, found: Found, spec: SessionSpec) -> str:
    if method.is_context:
        engine = sides.engines[method.sides[0] if method.sides else Side.DEVICE]
        documents = [each for side in method.sides for each in found.documents(side, counts)]
        return answer_alone(engine, sides.codec, spec, found.joined(documents, spec.query))
    used = {side: counts.of(side) if side in method.sides else 0 for side in SIDES}
    spec = replace(
        spec,
        device_documents=used[Side.DEVICE],
        cloud_documents=used[Side.CLOUD],
        weight_interval=spec.weight_interval if method.is_dynamic else 0,
    )
    pair = LocalPair(sides.engines, sides.retrievers, sides.codec)
    return pair.answer(spec)[0]


def answer_alone(engine: Engine, codec: Codec, spec: SessionSpec, document: str) -> str:
    """The answer of one model from one row, compressed and drawn as a lone side's would be. document: "" for none."""
    rule = StopRule(
        spec.eos_token_ids, spec.stop_strings, spec.max_new_tokens, Detokenizer(engine.tokenizer_json)
    )
    drafts = draft_rule(spec.draft_rule, spec.temperature)
    key, tokens = "alone", list[int]()
    engine.open(key, spec.query, [document] if document else [], spec.max_new_tokens, is_stored=False)
    try:
        while rule.finished(tokens) is None:
            law = codec.decode(
                codec.encode(side_law(engine.next_logits(key, tokens), [0.0], spec.temperature))
            )
            tokens.append(drafts.draft(law, seed=spec.seed, step=len(tokens), side=Side.DEVICE))
    finally:
        engine.close(key)
    return rule.text(tokens).strip()


def _comparisons(
    asked: Mapping[tuple[str, Counts], Sequence[Prediction]],
    methods: Mapping[str, Method],
    counts: Sequence[Counts],
) -> list[str]:
    """Paired, by McNemar's test: dynamic weights against every other method."""
    sentences = []
    for each in counts:
        for name in methods if "dynamic" in methods else ():
            if name == "dynamic":
                continue
            right = [[one.is_exact for one in asked[which, each]] for which in ("dynamic", name)]
            only_dynamic, only_other, p_value = statistics.mcnemar(*right)
            sentences.append(
                f"{each.device} + {each.cloud} documents, exact: only dynamic weights {only_dynamic}, "
                f"only {name} {only_other}, McNemar p = {p_value:.2g}."
            )
    return sentences


def _share(values: Sequence[bool]) -> Share:
    return Share(value=sum(values) / len(values), interval=statistics.wilson(sum(values), len(values)))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _what(sides: Sides, questions: Sequence[Question], config: Config) -> dict[str, object]:
    return {
        "models": {side.value: sides.engines[side].name for side in SIDES},
        "questions": len(questions),
        "temperature": config.generation.temperature,
        "codec": sides.codec.fingerprint(),
        "weights": asdict(config.weights),
    }
