"""Log probabilities as the `openai` package reads them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tandem import Answer, Tandem
from tests.server.running import QUESTION

openai = pytest.importorskip("openai")

MESSAGES = [{"role": "user", "content": QUESTION}]
HOT = {"temperature": 1.0, "max_tokens": 10, "seed": 3}


def ask(client: Any, **options: Any) -> Any:
    return client.chat.completions.create(model="tandem", messages=MESSAGES, **options)


def check_entries(entries: Any, answer: Answer) -> None:
    """They are those of the answer to the bit, and of a distribution."""
    for entry, token in zip(entries, answer.tokens, strict=True):
        assert token.logprob is not None
        assert (entry.token, entry.logprob) == (token.logprob.text, token.logprob.logprob)
        assert [top.logprob for top in entry.top_logprobs] == [top.logprob for top in token.top_logprobs]
        assert 0 < math.fsum(math.exp(top.logprob) for top in entry.top_logprobs) <= 1 + 1e-9


def test_chat_has_the_log_probabilities_of_the_python_api(client: Any, tandem: Tandem) -> None:
    answer = tandem.query(QUESTION, temperature=1.0, max_new_tokens=10, seed=3, num_logprobs=4)
    options: Any = {"temperature": 1.0, "max_new_tokens": 10, "seed": 3, "draft_rule": "coupled"}
    assert answer.token_ids == tandem.query(QUESTION, **options).token_ids
    choice = ask(client, logprobs=True, top_logprobs=4, **HOT).choices[0]
    assert choice.message.content == answer.text
    assert len(choice.logprobs.content) == len(answer.tokens)
    check_entries(choice.logprobs.content, answer)
    assert all(len(entry.top_logprobs) == 4 for entry in choice.logprobs.content)
    spelled = b"".join(bytes(entry.bytes) for entry in choice.logprobs.content if entry.bytes is not None)
    assert spelled.decode().strip() == answer.text
    chunks = list(ask(client, logprobs=True, top_logprobs=4, stream=True, **HOT))
    parts = [chunk.choices[0].logprobs for chunk in chunks]
    assert [entry for part in parts if part is not None for entry in part.content] == choice.logprobs.content


def test_in_mode_speculative_they_are_the_cloud_s_own(client: Any, tandem: Tandem) -> None:
    """To the bit those of a cloud that answers by itself, and the answer is the same without them."""
    options: Any = {"mode": "speculative", "temperature": 1.0, "max_new_tokens": 10, "seed": 3}
    options["on_peer_loss"] = "wait"  # however busy the machine is
    cloud = tandem.query(QUESTION, only="cloud", num_logprobs=20, **options)
    assert cloud.token_ids == tandem.query(QUESTION, **options).token_ids
    speculative = {"mode": "speculative", "on_peer_loss": "wait"}
    choice = ask(client, logprobs=True, top_logprobs=20, **HOT, extra_body=speculative).choices[0]
    assert choice.message.content == cloud.text
    assert len(choice.logprobs.content) == len(cloud.tokens)
    check_entries(choice.logprobs.content, cloud)
    chunks = list(ask(client, logprobs=True, top_logprobs=20, stream=True, **HOT, extra_body=speculative))
    parts = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices[0].logprobs is not None]
    assert [entry for part in parts for entry in part.content] == choice.logprobs.content


def test_text_completions_have_columns(client: Any) -> None:
    create = client.completions.create
    chat = ask(client, logprobs=True, top_logprobs=3, **HOT).choices[0].logprobs.content
    choice = create(model="tandem", prompt=QUESTION, logprobs=3, **HOT).choices[0]
    columns = choice.logprobs
    assert columns.tokens == [entry.token for entry in chat]
    assert columns.token_logprobs == [entry.logprob for entry in chat]
    for entry, top in zip(chat, columns.top_logprobs, strict=True):
        assert top == {each.token: each.logprob for each in (*entry.top_logprobs, entry)}
    for token, start in zip(columns.tokens[1:], columns.text_offset[1:], strict=True):
        assert choice.text[start:].startswith(token.rstrip()) or token.startswith("<")
    chunks = list(create(model="tandem", prompt=QUESTION, logprobs=3, stream=True, **HOT))
    parts = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices[0].logprobs is not None]
    assert [start for part in parts for start in part.text_offset] == columns.text_offset
