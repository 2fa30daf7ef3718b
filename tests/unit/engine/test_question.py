"""How probable each row finds the question: as a plain pass has it, and with the same bits however it is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from tandem.aggregation.document_weights import MAX_QUESTION, MIN_PROBABILITY
from tandem.conversation import Message
from tandem.engine.engine import Engine

NAMES = ["qwen2-sliding", "llama-grouped", "opt", "gpt-neox"]
DOCUMENTS = [
    "Mira likes puzzle games.",
    "",
    "The best rated puzzle game is Vantelu Cor, and it has 40 levels.",
]
QUERY = "Which game should Mira try?"
LONG = " ".join([QUERY] * 6)
HISTORY = (Message("user", "Who?"), Message("assistant", "Mira."))

Save = Callable[..., Path]


@pytest.fixture(scope="module", params=NAMES)
def engine(request: pytest.FixtureRequest, save_model: Save) -> Engine:
    return Engine.load(str(save_model(request.param)), num_threads=1)


def likelihoods(
    engine: Engine,
    documents: Sequence[str] = DOCUMENTS,
    *,
    query: str = QUERY,
    history: Sequence[Message] = (),
    session: str = "s",
) -> tuple[float, ...]:
    """Of a session of its own."""
    engine.open(session, query, documents, 20, history=history, scores_question=True)
    try:
        engine.next_logits(session, ())
        return engine.question_likelihoods(session)
    finally:
        engine.close(session)


def plain(
    engine: Engine, documents: Sequence[str], query: str = QUERY, history: Sequence[Message] = ()
) -> list[float]:
    """Oracle: one pass over each row without cache, in float64."""
    prompt = engine.build_prompt(query, documents, 20, history)
    found = []
    for document in prompt.document_tokens:
        row = [*document, *prompt.query_tokens]
        with torch.inference_mode():
            output = engine.runner.model(input_ids=torch.tensor([row]), use_cache=False)
        logits = output.logits[0, :, : engine.vocab_size]
        log_p = torch.log_softmax(logits.double(), dim=-1).clamp(
            min=float(torch.log(torch.tensor(MIN_PROBABILITY)))
        )
        places = range(len(row) - prompt.num_question + 1, len(row))
        total = sum(float(log_p[place - 1, row[place]]) for place in places)
        found.append(total * min(1.0, MAX_QUESTION / len(places)))
    return found


@pytest.mark.parametrize("query", [QUERY, LONG])
def test_it_is_what_a_plain_pass_says(engine: Engine, query: str) -> None:
    found = likelihoods(engine, query=query)
    assert found == pytest.approx(plain(engine, DOCUMENTS, query), abs=1e-3)
    assert len(set(found)) == len(DOCUMENTS), "rows differ"
    assert likelihoods(engine, [], query=query) == found[1:2], "an empty document is a bare row"


def test_the_question_alone_is_scored(engine: Engine) -> None:
    """What precedes it, a document and earlier turns, changes what it is scored by, and is not scored itself."""
    tokenizer = Tokenizer.from_str(engine.tokenizer_json)
    prompt = engine.build_prompt(QUERY, DOCUMENTS, 20)
    assert prompt.num_question == len(prompt.query_tokens)
    later = engine.build_prompt(QUERY, DOCUMENTS, 20, HISTORY)
    asked = tokenizer.decode(list(later.query_tokens[-later.num_question :]))
    assert QUERY in asked
    assert "Mira." not in asked
    found = likelihoods(engine, history=HISTORY)
    assert found == pytest.approx(plain(engine, DOCUMENTS, history=HISTORY), abs=1e-3)
