"""Rows: two parts tokenised separately, cut to the context, and never cut silently."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tandem.conversation import Message
from tandem.engine.prompt import PromptBuilder
from tandem.engine.template import PlainTemplate
from tandem.errors import Code, GenerationError

TEMPLATE = PlainTemplate(document_text="Note: {document}\n", query_text="Question: {query}\nAnswer:")
LONG = "Mira likes puzzle games, so try Vantelu Cor. " * 12


def builder(tokenizers: dict[str, Tokenizer], context: int = 120) -> PromptBuilder:
    return PromptBuilder(tokenizers["byte_level"], TEMPLATE, (0,), context)


def ids(tokenizers: dict[str, Tokenizer], text: str) -> tuple[int, ...]:
    return tuple(tokenizers["byte_level"].encode(text, add_special_tokens=False).ids)


def test_a_long_document_loses_its_end_and_keeps_the_templates(tokenizers: dict[str, Tokenizer]) -> None:
    prompt = builder(tokenizers).build("Mira?", ["Cor", LONG], 8)
    assert prompt.truncated == (1,)
    assert prompt.documents == (0, 1)
    room = 120 - 8 - 1 - len(prompt.query_tokens)
    assert room - 3 <= len(prompt.document_tokens[1]) - 1 <= room
    text = tokenizers["byte_level"].decode(prompt.document_tokens[1][1:])
    assert text.startswith("Note: Mira")
    assert text.endswith("\n")
    assert LONG.startswith(text[len("Note: ") : -1])


@pytest.mark.parametrize("context", range(30, 70, 3))
def test_every_context_is_kept(tokenizers: dict[str, Tokenizer], context: int) -> None:
    prompt = builder(tokenizers, context).build("Mira?", [LONG, "Cor 日本語", "x"], 8)
    assert sorted(prompt.documents + prompt.dropped) == [0, 1, 2]
    for row in prompt.document_tokens:
        assert len(row) + len(prompt.query_tokens) + 8 <= context


def test_a_question_longer_than_the_context(tokenizers: dict[str, Tokenizer]) -> None:
    num_tokens = 1 + len(ids(tokenizers, f"Question: {LONG}\nAnswer:"))
    with pytest.raises(GenerationError) as raised:
        builder(tokenizers, 64).build(LONG, [], 8)
    assert str(raised.value) == (
        f"The question of {num_tokens} tokens and an answer of up to 8 tokens do not fit the model's context of 64; "
        "shorten the question, lower max_new_tokens or use a model with a longer context."
    )


def test_of_a_hopelessly_long_text_only_the_beginning_is_tokenised(tokenizers: dict[str, Tokenizer]) -> None:
    prompts = builder(tokenizers, 64)
    assert prompts.answer_room("Mira " * 10_000, 64) == 1
    with pytest.raises(GenerationError) as caught:
        prompts.build("Mira " * 10_000, [], 1)
    assert caught.value.code is Code.TOO_LONG
    assert str(caught.value) == (
        "The question has more than twice the 64 tokens of the model's context; shorten it, or use a model with a "
        "longer context."
    )
    history = [Message("user", "Mira " * 10_000), Message("assistant", "Yes.")]
    with pytest.raises(GenerationError, match=r"The conversation has more than twice .*; begin a new one"):
        prompts.build("Why?", [], 1, history)


# ---- template ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("{", "is not readable JSON"),
        ("[" * 100_000, "is not readable JSON"),
        (
            '["x"]',
            "must be an object with the keys document and query, but it has list; correct or delete it.",
        ),
        (
            '{"documents": "{document}"}',
            "has the key 'documents', but a template has document and query; the nearest is 'document'.",
        ),
        ('{"document": "x"}', "'document' must be a text that holds {document} once, but it is 'x'"),
        ('{"query": 3}', "but it is 3"),
    ],
)
def test_wrong_files_are_one_sentence(tmp_path: Path, content: str, part: str) -> None:
    file = tmp_path / "template.json"
    file.write_text(content)
    with pytest.raises(GenerationError) as raised:
        PlainTemplate.read(file)
    assert part in str(raised.value)
    assert str(file) in str(raised.value)
    assert "\n" not in str(raised.value)
