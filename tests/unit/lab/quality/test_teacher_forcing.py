"""Scoring a whole continuation at once equals decoding it token by token through engine, side laws and mixture.

The oracle is written as a session runs: one forward pass a token, `mix_rows` of each side, weights of documents from
the committed prefix, shares of the sides, the mixture. Planted bugs must make the two differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from tokenizers import Tokenizer

from tandem.aggregation.document_weights import DocumentWeights, log_evidence, log_weight
from tandem.aggregation.rules import shares, target_distribution
from tandem.config.schema import WeightsConfig
from tandem.engine.drafter import mix_rows, row_probabilities
from tandem.engine.engine import Engine
from tandem.engine.prompt import Prompt
from tandem.messages import RetrieveResult
from tandem.messages.wire import to_float32
from tandem.protocol.decoding import arrange_rows
from tandem.topology import PARTIES, Party
from tandem_lab.baselines.documents import JOINT
from tandem_lab.quality import aggregation, teacher_forcing
from tandem_lab.quality.aggregation import DynamicWeights, Floats, blend, checkpoints
from tandem_lab.quality.document_sets import Counts, DocumentSet
from tandem_lab.quality.methods import METHODS, Method
from tandem_lab.quality.teacher_forcing import Case, Teacher, force_tokens
from tests.distributions import from_dense
from tests.unit.lab.quality.conftest import TEXTS, make_found, score

QUERY = "Which puzzle game"
ANSWER = " is the best rated? Vantelu Cor, so Mira likes games."
TOLERANCE = 2e-5
WEIGHTS = WeightsConfig(question=0.5, evidence=0.7, memory=0.8)
DYNAMIC = DynamicWeights(interval=3, lag=1, momentum=0.4)


def make_case(engine: Engine, query: str = QUERY) -> Case:
    tokenizer = Tokenizer.from_str(engine.tokenizer_json)
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in (query, ANSWER)]
    return Case(query, tuple(ids[0]), tuple(ids[1]))


def step_by_step(
    engine: Engine,
    case: Case,
    documents: dict[Party, list[int]],
    method: Method,
    weights: WeightsConfig,
    dynamic: DynamicWeights,
) -> list[float]:
    """-log p of each token, as a session would come to it."""
    rows = {party: rows_of(documents[party], method.layout) for party in PARTIES}
    logs = {party: [weights.scale * score for _, score in rows[party]] for party in PARTIES}
    evidence = {}
    for party in PARTIES:
        texts = [text for text, _ in rows[party]]
        engine.open(party.value, case.query, texts, len(case.tokens), scores_question=True)
        engine.next_logits(party.value, ())
        question = engine.question_likelihoods(party.value)[: len(texts)]
        evidence[party] = [weights.question * each for each in question]
    losses = []
    for step, token in enumerate(case.tokens):
        distributions, log_weights = {}, {}
        for party in PARTIES:
            now = logs[party]
            if method.weights == "dynamic":
                now = relevance_at(engine, case, documents[party], step, weights, dynamic)
            if method.weights == "evidence":
                now = [log + weights.evidence * each for log, each in zip(now, evidence[party], strict=True)]
            logits = engine.next_logits(party.value, case.tokens[:step])
            distributions[party] = from_dense(mix_rows(logits, now or (0.0,), 1.0))
            log_weights[party] = to_float32(log_weight(now))
            said = log_evidence(row_probabilities(logits)[:, token].tolist())
            evidence[party] = [
                weights.memory * old + new for old, new in zip(evidence[party], said, strict=False)
            ]
        eta, _ = shares(log_weights[Party.DEVICE], log_weights[Party.CLOUD])
        losses.append(
            -math.log(
                target_distribution(distributions[Party.DEVICE], distributions[Party.CLOUD], eta).probability(
                    token
                )
            )
        )
    for party in PARTIES:
        engine.close(party.value)
    return losses


def rows_of(documents: Sequence[int], layout: str) -> list[tuple[str, float]]:
    """Text and score of each row, by the layout that a session has."""
    retrieved = RetrieveResult(
        session=1,
        ids=tuple(map(str, documents)),
        texts=tuple(TEXTS[each] for each in documents),
        scores=tuple(score(QUERY, each) for each in documents),
        retrieve_us=0,
    )
    return [(row.text, row.score) for row in arrange_rows(retrieved, layout)]


def relevance_at(
    engine: Engine,
    case: Case,
    documents: Sequence[int],
    step: int,
    weights: WeightsConfig,
    dynamic: DynamicWeights,
) -> list[float]:
    """The paper's weights."""
    scores: tuple[float, ...] | None = None
    for length in checkpoints(step, dynamic.interval, dynamic.lag):
        so_far = engine.text(case.tokens[:length]).strip()
        text = f"{case.query} {so_far}" if length else case.query
        estimate = [weights.scale * score(text, each) for each in documents]
        scores = blend(scores, estimate, dynamic.momentum)
    return list(scores or ())


def differences(
    engine: Engine,
    found: DocumentSet,
    method: Method,
    counts: Counts,
    weights: WeightsConfig,
    dynamic: DynamicWeights = DYNAMIC,
) -> float:
    """Largest difference between the two ways over all tokens."""
    case = make_case(engine)
    teacher = Teacher(dict.fromkeys(PARTIES, engine), weights, dynamic=dynamic)
    fast = teacher.losses(case, found, {"m": method}, [counts])["m", counts]
    documents = {
        party: list(found.documents(party, counts)) if party in method.parties else [] for party in PARTIES
    }
    slow = step_by_step(engine, case, documents, method, weights, dynamic)
    assert len(fast) == len(slow) == len(case.tokens)
    return float(np.abs(fast - slow).max())


OUTPUT = [name for name, method in METHODS.items() if not method.is_context and not method.is_ideal]


@pytest.mark.parametrize("family", ["llama-grouped", "opt", "gpt-neox", "qwen2-sliding"])
def test_output_aggregation_equals_decoding_step_by_step(
    load_engine: Callable[..., Engine], family: str, counts: Sequence[Counts]
) -> None:
    engine = load_engine(family)
    for name in OUTPUT:
        for each in counts if name in ("evidence", "both") else [Counts(2, 3)]:
            assert differences(engine, make_found(), METHODS[name], each, WEIGHTS) < TOLERANCE, (name, each)


@pytest.mark.parametrize("interval", [0, 1, 2, 5])
@pytest.mark.parametrize(("lag", "momentum"), [(0, 0.0), (2, 0.0), (1, 0.5)])
def test_any_interval_lag_and_momentum(
    load_engine: Callable[..., Engine], interval: int, lag: int, momentum: float
) -> None:
    weights, dynamic = WeightsConfig(), DynamicWeights(interval, lag, momentum)
    found, method = make_found(), METHODS["dynamic"]
    assert differences(load_engine(), found, method, Counts(2, 2), weights, dynamic) < TOLERANCE


@pytest.mark.parametrize("evidence", [0.0, 1.0, 2.5])
@pytest.mark.parametrize(("question", "memory"), [(0.0, 0.0), (1.0, 0.9), (2.0, 1.0)])
def test_any_weights_of_question_and_evidence(
    load_engine: Callable[..., Engine], evidence: float, question: float, memory: float
) -> None:
    weights = WeightsConfig(scorer="cross-encoder", question=question, evidence=evidence, memory=memory)
    assert differences(load_engine(), make_found(), METHODS["both"], Counts(2, 2), weights) < TOLERANCE


@pytest.mark.parametrize("name", ["none", "crcg-device", "crcg-cloud", "drcg"])
def test_context_aggregation_is_one_row_of_all_documents_best_first(
    load_engine: Callable[..., Engine], name: str
) -> None:
    engine, case, method, counts = load_engine(), make_case(load_engine()), METHODS[name], Counts(2, 2)
    numbers = {"none": [], "crcg-device": [0, 1], "crcg-cloud": [3, 4], "drcg": [0, 1, 3, 4]}[name]
    numbers.sort(key=lambda number: -score(QUERY, number))
    joined = JOINT.join(TEXTS[number] for number in numbers)
    engine.open("s", case.query, [joined] if joined else [], len(case.tokens))
    slow = []
    for step, token in enumerate(case.tokens):
        distribution = mix_rows(engine.next_logits("s", case.tokens[:step]), (0.0,), 1.0)
        slow.append(-math.log(distribution[token]))
    engine.close("s")
    fast = Teacher(dict.fromkeys(PARTIES, engine), WEIGHTS).losses(
        case, make_found(), {name: method}, [counts]
    )
    assert np.abs(fast[name, counts] - slow).max() < TOLERANCE


def test_two_models_each_read_their_own_parties_documents(load_engine: Callable[..., Engine]) -> None:
    engines = {Party.DEVICE: load_engine("llama"), Party.CLOUD: load_engine("opt")}
    case, counts = make_case(engines[Party.DEVICE]), Counts(2, 2)
    both = Teacher(engines, WEIGHTS).losses(case, make_found(), METHODS, [counts])
    for name, party in (("device", Party.DEVICE), ("crcg-cloud", Party.CLOUD), ("drcg", Party.DEVICE)):
        one = Teacher(dict.fromkeys(PARTIES, engines[party]), WEIGHTS)
        alone = one.losses(case, make_found(), {name: METHODS[name]}, [counts])
        assert both[name, counts] == pytest.approx(alone[name, counts], abs=TOLERANCE), name


@pytest.mark.parametrize("counts", [Counts(2, 3), Counts(2, 0), Counts(0, 0)], ids=str)
def test_the_oracle_takes_each_token_from_the_document_that_tells_it_best(
    load_engine: Callable[..., Engine], counts: Counts
) -> None:
    """Each document alone, as the cloud's or the device's only one; without any the bare row."""
    engine, found = load_engine("opt"), make_found()
    case, teacher = make_case(engine), Teacher(dict.fromkeys(PARTIES, engine), WEIGHTS)
    documents = [each for party in PARTIES for each in found.documents(party, counts)]
    texts = [TEXTS[each] for each in documents] or [""]
    alone = [
        -force_tokens(
            engine, engine.build_prompt(case.prompt, [text] if text else [], len(case.tokens)), case.tokens
        )[0][0]
        for text in texts
    ]
    losses = teacher.losses(case, found, METHODS, [counts])
    assert losses["oracle", counts] == pytest.approx(np.min(alone, axis=0), abs=TOLERANCE)
    for name in OUTPUT:  # no weights are better, whatever they are
        if METHODS[name].parties == PARTIES and METHODS[name].layout == "rows":
            assert (losses["oracle", counts] <= losses[name, counts] + TOLERANCE).all(), name


# ---- planted bugs --------------------------------------------------------------------------------------------


def shifted_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The logits after a token are taken for those before it."""

    def shifted(engine: Engine, prompt: Prompt, tokens: Sequence[int]) -> tuple[Floats, list[float]]:
        log_p, questions = force_tokens(engine, prompt, tokens)
        return np.roll(log_p, 1, 1), questions

    monkeypatch.setattr(teacher_forcing, "force_tokens", shifted)


def weights_from_the_future(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights at step t know the token of step t and more."""
    original = aggregation.relevance_by_step

    def foreseen(num_tokens: int, estimate: Callable[[int], Sequence[float]], rule: DynamicWeights) -> Floats:
        return original(num_tokens + rule.interval, estimate, rule)[rule.interval :]

    monkeypatch.setattr(teacher_forcing, "relevance_by_step", foreseen)


def evidence_of_the_token_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights at step t know what the token of step t says."""
    original = aggregation.evidence_by_step
    monkeypatch.setattr(
        teacher_forcing, "evidence_by_step", lambda log_p, rule: original(np.roll(log_p, -1, 1), rule)
    )


def evidence_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights stay as they begin."""
    monkeypatch.setattr(DocumentWeights, "learn", lambda self, evidence, token: evidence)


def the_question_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def unscored(engine: Engine, prompt: Prompt, tokens: Sequence[int]) -> tuple[Floats, list[float]]:
        log_p, questions = force_tokens(engine, prompt, tokens)
        return log_p, [0.0] * len(questions)

    monkeypatch.setattr(teacher_forcing, "force_tokens", unscored)


def mean_of_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A side's law is the geometric mean of its rows."""
    original = aggregation.party_tokens

    def mixed(log_p, relevance):
        found = original(log_p, relevance)
        if relevance is None:
            return found
        omega = np.exp(relevance - found.log_weight[:, None])
        return replace(found, log_q=(omega * log_p.T).sum(axis=1))

    monkeypatch.setattr(teacher_forcing, "party_tokens", mixed)


def parties_count_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregation, "shares", lambda device, cloud: (0.5, 0.5))


def documents_swapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A document's row is weighed by the score of another."""
    original = DocumentSet.scores
    monkeypatch.setattr(DocumentSet, "scores", lambda self, text: original(self, text)[::-1])


def question_not_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Relevance is that of the answer alone."""
    monkeypatch.setattr(teacher_forcing, "text_to_score", lambda query, answer: answer.strip() or query)


@pytest.mark.parametrize(
    ("name", "mutate"),
    [
        ("dynamic", shifted_by_one),
        ("dynamic", weights_from_the_future),
        ("dynamic", question_not_scored),
        ("evidence", shifted_by_one),
        ("evidence", evidence_of_the_token_itself),
        ("evidence", evidence_forgotten),
        ("evidence", the_question_left_out),
        ("evidence", mean_of_logs),
        ("evidence", parties_count_alike),
        ("evidence", documents_swapped),
    ],
)
def test_a_planted_bug_is_found(
    load_engine: Callable[..., Engine],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    mutate: Callable[[pytest.MonkeyPatch], None],
) -> None:
    mutate(monkeypatch)
    difference = differences(load_engine(), make_found(), METHODS[name], Counts(2, 3), WEIGHTS)
    assert difference > 100 * TOLERANCE
