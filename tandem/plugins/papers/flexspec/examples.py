"""Examples for a drafter: texts as they are, and answers that the target itself writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING

import torch
from tokenizers import Tokenizer

from tandem.errors import GenerationError
from tandem.plugins.papers.flexspec.training import Example

if TYPE_CHECKING:
    from tandem.engine.engine import Engine

Row = tuple[Example, Example]
"""The same tokens as drafter and target see them."""
AT_ONCE = 16
"""Answers that are written in one batch."""
SHOWN_SHARE = 0.5
"""Of the answers to a document: how often the drafter sees it, too. Elsewhere it is the other party's."""


def text_rows(engine: Engine, texts: Sequence[str], max_tokens: int) -> list[Row]:
    """Every text, cut into rows of so many tokens, behind what a row begins with; all tokens count."""
    head = engine.build_prompt((0,), (), 1).document_tokens[0][:1]
    room = min(max_tokens, (engine.context_length or max_tokens) - len(head))
    tokenizer = Tokenizer.from_str(engine.tokenizer_json)
    rows = []
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        for at in range(0, len(ids), room):
            window = (*head, *ids[at : at + room])
            if len(window) > 1:
                rows.append((Example(window, 1),) * 2)
    return rows


def answer_rows(
    engine: Engine,
    questions: Sequence[str],
    documents: Sequence[str],
    *,
    num_answers: int,
    max_new_tokens: int,
    rng: Random,
    report: Callable[[int, int], object] = lambda done, total: None,
) -> list[Row]:
    """So many answers that the target draws at temperature 1, to the questions in turn, each with a document of its
    own, or none where there are none. Half of the documents are hidden from the drafter. Raises GenerationError.

    report: receives (answers done, all).
    """
    rows: list[Row] = []
    for start in range(0, num_answers, AT_ONCE):
        chosen = [
            (questions[number % len(questions)], (rng.choice(documents),) if documents else ())
            for number in range(start, min(start + AT_ONCE, num_answers))
        ]
        answers = draw_answers(engine, chosen, max_new_tokens, rng)
        for (question, shown), answer in zip(chosen, answers, strict=True):
            own = shown if rng.random() < SHOWN_SHARE else ()
            rows.append(
                (
                    answer_example(engine, question, own, answer),
                    answer_example(engine, question, shown, answer),
                )
            )
        report(len(rows), num_answers)
    return rows


def draw_answers(
    engine: Engine, prompts: Sequence[tuple[str, Sequence[str]]], max_new_tokens: int, rng: Random
) -> list[list[int]]:
    """An answer to each (question, documents), drawn at temperature 1 from the row of the first document, in one batch;
    an end-of-sequence token is its last. Raises GenerationError.
    """
    generator = torch.Generator().manual_seed(rng.getrandbits(63))
    return write_answers(
        engine,
        prompts,
        max_new_tokens,
        lambda law, answer, step: int(torch.multinomial(law, 1, generator=generator)),
    )


def write_answers(
    engine: Engine,
    prompts: Sequence[tuple[str, Sequence[str]]],
    max_new_tokens: int,
    choose: Callable[[torch.Tensor, int, int], int],
) -> list[list[int]]:
    """As `draw_answers`. choose: the token, from the distribution [vocab] at temperature 1, the answer's number and the
    step.
    """
    names = [f"distillation {number}" for number in range(len(prompts))]
    answers: dict[str, list[int]] = {name: [] for name in names}
    try:
        for name, (question, documents) in zip(names, prompts, strict=True):
            engine.open(name, question, documents, max_new_tokens, num_stored=0)
        going = list(names)
        while going:
            computed = engine.forward({name: answers[name] for name in going})
            for name, logits in zip(going, computed, strict=True):
                law = logits[0, -1].double().softmax(-1).cpu()
                answers[name].append(choose(law, names.index(name), len(answers[name])))
            going = [
                name
                for name in going
                if answers[name][-1] not in engine.eos_token_ids and len(answers[name]) < max_new_tokens
            ]
    finally:
        for name in names:
            engine.close(name)
    return [answers[name] for name in names]


def answer_example(engine: Engine, question: str, documents: Sequence[str], answer: Sequence[int]) -> Example:
    """An answer behind the row that the engine builds for it. Raises GenerationError."""
    prompt = engine.build_prompt(question, documents, len(answer))
    head = (*prompt.document_tokens[0], *prompt.query_tokens)
    return Example((*head, *answer), len(head))


def check_rows(rows: Sequence[Row], num_held_out: int) -> None:
    """GenerationError if there is too little to learn from."""
    if len(rows) < 2 * num_held_out:
        raise GenerationError(
            f"There are {len(rows)} rows to learn from, of which {num_held_out} would be held out; "
            "name more text, or more questions."
        )
