"""Rows: two parts tokenised separately, cut to the context, and never cut silently."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from tandem.engine.prompt import PromptBuilder
from tandem.engine.template import Template
from tandem.errors import GenerationError

TEMPLATE = Template(document="Note: {document}\n", query="Question: {query}\nAnswer:")
LONG = "Mira likes puzzle games, so try Vantelu Cor. " * 12


def builder(
    tokenizers: dict[str, Tokenizer], context: int | None = 120, bos: tuple[int, ...] = (0,)
) -> PromptBuilder:
    return PromptBuilder(tokenizers["byte_level"], TEMPLATE, bos, context)


def ids(tokenizers: dict[str, Tokenizer], text: str) -> tuple[int, ...]:
    return tuple(tokenizers["byte_level"].encode(text, add_special_tokens=False).ids)


def test_rows_are_bos_document_query(tokenizers: dict[str, Tokenizer]) -> None:
    prompt = builder(tokenizers).build("Mira?", ["Vantelu {query}"], 8)
    assert prompt.prefixes == ((0, *ids(tokenizers, "Note: Vantelu {query}\n")),)
    assert prompt.query == ids(tokenizers, "Question: Mira?\nAnswer:")
    assert (prompt.documents, prompt.truncated, prompt.dropped) == ((0,), (), ())


def test_without_documents_there_is_one_bare_row(tokenizers: dict[str, Tokenizer]) -> None:
    assert builder(tokenizers).build("Mira?", [], 8).prefixes == ((0,),)
    assert builder(tokenizers, bos=()).build("Mira?", [], 8).prefixes == ((),)


def test_a_long_document_loses_its_end_and_keeps_the_templates(tokenizers: dict[str, Tokenizer]) -> None:
    prompt = builder(tokenizers).build("Mira?", ["Cor", LONG], 8)
    assert prompt.truncated == (1,)
    assert prompt.documents == (0, 1)
    room = 120 - 8 - 1 - len(prompt.query)
    assert room - 3 <= len(prompt.prefixes[1]) - 1 <= room
    text = tokenizers["byte_level"].decode(prompt.prefixes[1][1:])
    assert text.startswith("Note: Mira")
    assert text.endswith("\n")
    assert LONG.startswith(text[len("Note: ") : -1])


def test_documents_of_several_bytes_a_character_are_cut_between_characters(
    tokenizers: dict[str, Tokenizer],
) -> None:
    prompt = builder(tokenizers).build("Mira?", ["日本語€😀" * 40], 8)
    text = tokenizers["byte_level"].decode(prompt.prefixes[0][1:])
    assert "\ufffd" not in text
    assert ("日本語€😀" * 40).startswith(text[len("Note: ") : -1])


@pytest.mark.parametrize("context", range(30, 70, 3))
def test_every_context_is_kept(tokenizers: dict[str, Tokenizer], context: int) -> None:
    prompt = builder(tokenizers, context).build("Mira?", [LONG, "Cor 日本語", "x"], 8)
    assert sorted(prompt.documents + prompt.dropped) == [0, 1, 2]
    for prefix in prompt.prefixes:
        assert len(prefix) + len(prompt.query) + 8 <= context


def test_a_document_without_any_room_is_dropped_and_said(tokenizers: dict[str, Tokenizer]) -> None:
    num_query = len(ids(tokenizers, "Question: Mira?\nAnswer:"))
    prompt = builder(tokenizers, 1 + num_query + 8 + 2).build("Mira?", [LONG], 8)
    assert prompt.dropped == (0,)
    assert prompt.prefixes == ((0,),)


def test_a_question_longer_than_the_context(tokenizers: dict[str, Tokenizer]) -> None:
    num_tokens = 1 + len(ids(tokenizers, f"Question: {LONG}\nAnswer:"))
    with pytest.raises(GenerationError) as raised:
        builder(tokenizers, 64).build(LONG, [], 8)
    assert str(raised.value) == (
        "A question and its answer must fit the model's context of 64 tokens, the question has "
        f"{num_tokens}, max_new_tokens is 8; shorten the question, lower max_new_tokens or use a model "
        "with a longer context."
    )


def test_no_limit_where_the_model_names_none(tokenizers: dict[str, Tokenizer]) -> None:
    assert builder(tokenizers, None).build(LONG * 9, [LONG * 9], 8).truncated == ()


def test_max_new_tokens_must_be_positive(tokenizers: dict[str, Tokenizer]) -> None:
    with pytest.raises(GenerationError, match="max_new_tokens is at least 1, it is 0"):
        builder(tokenizers).build("Mira?", [], 0)


def test_special_tokens_in_a_document_are_text(tokenizers: dict[str, Tokenizer]) -> None:
    prompt = builder(tokenizers).build("<eos>?", ["<eos> <bos>"], 8)
    assert 1 not in prompt.prefixes[0] + prompt.query
    assert 0 not in prompt.prefixes[0][1:]


def test_special_tokens_of_the_template_are_tokens(tokenizers: dict[str, Tokenizer]) -> None:
    template = Template(document="{document}", query="<eos>{query}")
    prompt = PromptBuilder(tokenizers["byte_level"], template, (0,), 120).build("Mira?", [], 8)
    assert prompt.query[0] == 1
