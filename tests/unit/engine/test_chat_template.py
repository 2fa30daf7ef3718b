"""Rows: chat templates give those of `apply_chat_template`, in two parts, or are refused; and a row is cut to the
context, never silently."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tandem.conversation import Frame, Message
from tandem.engine.engine import Engine
from tandem.engine.places import info_of
from tandem.engine.prompt import PromptBuilder
from tandem.engine.template import DOCUMENT, ChatTemplate, PlainTemplate, Template, find_template
from tandem.errors import Code, GenerationError
from tests import chat_model
from tests.unit.engine.builders import sentence_piece

SYSTEM = "Be brief."
DOCUMENTS = ["Mira likes puzzle games.", "The best puzzle game is Vantelu Cor. 日本語"]
QUESTION = "Which game should Mira try?"
ASKED = (Message("user", QUESTION),)
HISTORY = (Message("user", "Who is Mira?"), Message("assistant", "She likes puzzle games."))
TURN = "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
OPEN = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
SYSTEM_LAST = (  # the system prompt stands before the last question, as in some models of Mistral's
    "{% set ns = namespace(system='') %}{% for message in messages %}{% if message['role'] == 'system' %}"
    "{% set ns.system = message['content'] + '\n\n' %}{% else %}<|im_start|>{{ message['role'] }}\n"
    "{% if loop.last %}{{ ns.system }}{% endif %}{{ message['content'] | trim }}<|im_end|>\n"
    "{% endif %}{% endfor %}" + OPEN
)
DROPS_SYSTEM = (
    "{% for message in messages %}{% if message['role'] != 'system' %}"
    + TURN
    + "{% endif %}{% endfor %}"
    + OPEN
)
ALL_FEATURES = """
{%- set ns = namespace(number=0, self='me') %}
{%- set known = dict(eos=eos_token, tools=tools, documents=documents, bos=bos_token is defined) %}
{%- macro head(role) %}{{ {'role': role, 'ü<': [1, none]} | tojson(indent=ns.number) }}{% endmacro %}
{{ ns.self }} {{ dict.fromkeys('ab', 0) }} {{ known | tojson(sort_keys=true, separators=(',', ':')) }}
  {% for message in messages %}
    {% if loop.index > 20 %}{% break %}{% elif not message['content'] %}{% continue %}{% endif %}
    {% set ns.number = ns.number + 1 %}
{{ head(message.role) }} <|im_start|>
    {% generation %}
      {% set ns.number = ns.number + 1 %}{% set head = 'of the block' %}
{{ message['content'] }}<|im_end|>
    {% endgeneration %}
  {% endfor %}
{% if add_generation_prompt %}<|im_start|>{{ strftime_now is defined }}{% endif %}

"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model.build(tmp_path_factory.mktemp("chat") / "model")


@pytest.fixture
def wrapper(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder)


def rows_of(wrapper: Any, template: Template, history: tuple[Message, ...] = ()) -> list[tuple[int, ...]]:
    bos = () if wrapper.bos_token_id is None else (wrapper.bos_token_id,)
    builder = PromptBuilder(wrapper.backend_tokenizer, template, bos, None)
    with_documents = builder.build(QUESTION, DOCUMENTS, 8, history)
    bare = builder.build(QUESTION, [], 8, history)
    assert bare.query_tokens == with_documents.query_tokens
    documents = with_documents.document_tokens + bare.document_tokens
    return [row + bare.query_tokens for row in documents]


def expected_rows(
    folder: Path, history: tuple[Message, ...], jinja: str, has_system: bool
) -> list[tuple[int, ...]]:
    """What transformers makes of the same messages, in one piece."""
    fresh: Any = AutoTokenizer.from_pretrained(folder)
    rows = []
    for first in [*(f"{document}\n\n" for document in DOCUMENTS), ""]:
        turns = [{"role": turn.role, "content": turn.content} for turn in (*history, *ASKED)]
        turns[0]["content"] = ("" if has_system else f"{SYSTEM}\n\n") + first + turns[0]["content"]
        if has_system:
            turns.insert(0, {"role": "system", "content": SYSTEM})
        rows.append(
            tuple(
                fresh.apply_chat_template(
                    turns, chat_template=jinja, add_generation_prompt=True, return_dict=False
                )
            )
        )
    return rows


@pytest.mark.parametrize("history", [(), HISTORY, HISTORY * 3], ids=["alone", "one turn", "three turns"])
@pytest.mark.parametrize(
    ("jinja", "has_system"),
    [(ALL_FEATURES, True), (SYSTEM_LAST, False), (DROPS_SYSTEM, False)],
    ids=["all features", "system prompt last", "system prompt dropped"],
)
def test_rows_are_what_transformers_gives(
    folder: Path, wrapper: Any, jinja: str, has_system: bool, history: tuple[Message, ...]
) -> None:
    """Whatever templates may use; without a place for it the system prompt opens the first message."""
    template = ChatTemplate(info_of(wrapper), SYSTEM, jinja)
    assert template.describe() == "chat" + ", the system prompt in the first message" * (not has_system)
    assert rows_of(wrapper, template, history) == expected_rows(folder, history, jinja, has_system)


@pytest.mark.parametrize("text", ["\ufdd0", "\ufdd10\ufdd2", "\ufdd3", "a\ufdd1"])
def test_marks_in_texts_of_others_are_text(wrapper: Any, text: str) -> None:
    """They would stand for a document or a question, or keep the template from being split."""
    builder = PromptBuilder(wrapper.backend_tokenizer, ChatTemplate(info_of(wrapper), SYSTEM), (), None)
    history = (Message("user", text), Message("assistant", text))
    prompt = builder.within(Frame(system_prompt=f"{text}!")).build(text, [text], 8, history)
    row = wrapper.backend_tokenizer.decode([*prompt.document_tokens[0], *prompt.query_tokens])
    assert row.count(text) == 5


# ---- tokenizers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["first", "always", "never", "Prepend"])
@pytest.mark.parametrize("start", ["", "{{ bos_token }}", "chat: "], ids=["marker", "bos", "text"])
def test_prefix_spaces_stand_where_the_whole_text_has_them(kind: str, start: str) -> None:
    wrapper: Any = PreTrainedTokenizerFast(
        tokenizer_object=sentence_piece(*chat_model.SPECIAL, prefix=kind), bos_token="<s>", unk_token="<unk>"
    )
    template = ChatTemplate(info_of(wrapper), SYSTEM, start + chat_model.CHATML)
    rows = rows_of(wrapper, template)
    backend = sentence_piece(*chat_model.SPECIAL, prefix=kind)
    for row, document in zip(rows, DOCUMENTS, strict=False):
        text = template.document.replace(DOCUMENT, document) + template.question(ASKED)[0]
        whole = text.replace("\ufdd10\ufdd2", QUESTION)
        assert row == tuple(backend.encode(whole, add_special_tokens=False).ids)


# ---- refusals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("jinja", "reason"),
    [
        ("{% for message in messages %}", "Unexpected end of template"),
        ("{{ raise_exception('Tools are needed') }}", "Tools are needed"),
        ("{{ messages[9].content }}", "list object has no element 9"),
        ("{{ ''.__class__.__mro__ }}", "access to attribute '__class__' of 'str' object is unsafe"),
        ("{{ messages.append(1) }}", "access to attribute 'append' of 'list' object is unsafe"),
        ("{% set ns = namespace(_x=1) %}", "a namespace has no variable '_x'"),
        ("{{ dict.__class__.__mro__ }}", "access to attribute '__class__' of"),
        (
            chat_model.CHATML.replace("message['content']", "message['content'] | upper | reverse"),
            "it does not",
        ),
        ("{{ messages[-1]['content'] }}", "it does not write every message once and in order"),
        (
            "{{ messages | length }}" + chat_model.CHATML,
            "what comes before the document depends on the messages",
        ),
        (
            chat_model.CHATML + "{% if messages[-1]['content'][-6] == '\ufdd0' %}!{% endif %}",
            "a question without a document ends differently from one with a document",
        ),
    ],
)
def test_a_template_that_cannot_be_split_is_one_sentence(wrapper: Any, jinja: str, reason: str) -> None:
    with pytest.raises(GenerationError) as raised:
        ChatTemplate(info_of(wrapper), SYSTEM, jinja)
    sentence = str(raised.value)
    assert sentence.startswith("The chat template cannot be used: ")
    assert reason in sentence
    assert sentence.endswith('; set template to "plain", or to a file with a template of your own.')
    assert "\n" not in sentence


# ---- which one -----------------------------------------------------------------------------------------------


def find(setting: str, folder: Path) -> Template:
    return find_template(setting, str(folder), info_of(AutoTokenizer.from_pretrained(folder)), SYSTEM)


def test_auto_is_the_file_then_the_tokenizers_own_then_plain(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert isinstance(find("auto", copy), ChatTemplate)
    (copy / "template.json").write_text(json.dumps({"query": "Q: {query}"}))
    assert find("auto", copy) == PlainTemplate(query_text="Q: {query}", source=str(copy / "template.json"))
    assert isinstance(find("chat", copy), ChatTemplate)
    assert find("plain", copy) == PlainTemplate()
    (copy / "template.json").unlink()
    (copy / "chat_template.jinja").unlink()
    assert find("auto", copy) == PlainTemplate()
    with pytest.raises(GenerationError) as raised:
        find("chat", copy)
    assert str(raised.value) == (
        f"The tokenizer of {str(copy)!r} has no chat template; "
        'set template to "plain", or to a file with one.'
    )


THINKS = "{% set answer = message['content'].split('</think>') | last %}"
OPEN_THOUGHT = "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"


@pytest.mark.parametrize(
    ("jinja", "thinking"),
    [
        (chat_model.CHATML, ""),
        ("{% for message in messages %}" + THINKS + TURN + "{% endfor %}" + OPEN, "marked"),
        ("{% for message in messages %}" + THINKS + TURN + "{% endfor %}" + OPEN_THOUGHT, "begun"),
    ],
)
@pytest.mark.parametrize("is_special", [False, True])
def test_whether_answers_begin_with_a_thought_follows_from_template_and_tokenizer(
    folder: Path, tmp_path: Path, jinja: str, thinking: str, is_special: bool
) -> None:
    copy = tmp_path / "model"
    shutil.copytree(folder, copy)
    (copy / "chat_template.jinja").write_text(jinja)
    if is_special:  # then the end of a thought is no text, and nothing can be separated
        tokenizer = (copy / "tokenizer.json").read_text()
        (copy / "tokenizer.json").write_text(tokenizer.replace("<|im_start|>", "</think>"))
    engine = Engine.load(str(copy), num_threads=1)
    assert engine.template.thinking == (thinking or ("marked" if is_special else ""))
    assert engine.describe()["thinking"] == ("" if is_special else thinking)


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
