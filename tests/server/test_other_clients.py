"""Clients that people have already: LangChain's ChatOpenAI, LlamaIndex's OpenAI-like client, and the command `llm`."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel

from tandem import Tandem
from tests.server.running import QUESTION, Served


class Rated(BaseModel):
    stars: Literal[1, 2, 3, 4, 5]


@pytest.fixture(scope="module")
def text(tandem: Tandem) -> str:
    return tandem.query(QUESTION, seed=5).text


def test_langchain_chat(served: Served, text: str) -> None:
    langchain_openai, openai = pytest.importorskip("langchain_openai"), pytest.importorskip("openai")
    chat = langchain_openai.ChatOpenAI(
        base_url=f"{served.url}/v1", api_key="none", model="tandem", seed=5, max_retries=0
    )
    message = chat.invoke(QUESTION)
    assert message.content == text
    assert message.usage_metadata["output_tokens"] > 5
    assert "".join(chunk.content for chunk in chat.stream(QUESTION)) == text
    assert [answer.content for answer in chat.batch([QUESTION, QUESTION])] == [text, text]
    assert asyncio.run(chat.ainvoke(QUESTION)).content == text
    assert chat.invoke(QUESTION, stop=[","]).content == text.split(",")[0]
    assert chat.invoke([("system", "Be brief."), ("human", QUESTION)], top_p=0.9, n=1, store=False).content
    assert chat.with_structured_output(Rated).invoke(QUESTION).stars in range(1, 6)
    with pytest.raises(openai.BadRequestError, match="Tandem does not call tools"):
        chat.bind_tools([Rated]).invoke(QUESTION)


def test_langchain_embeddings(served: Served) -> None:
    langchain_openai = pytest.importorskip("langchain_openai")
    embeddings = langchain_openai.OpenAIEmbeddings(
        base_url=f"{served.url}/v1",
        api_key="none",
        model="sentence-transformers/all-MiniLM-L6-v2",
        check_embedding_ctx_length=False,
    )
    assert len(embeddings.embed_query("It rains.")) == 384


def test_llama_index(served: Served, text: str) -> None:
    openai_like = pytest.importorskip("llama_index.llms.openai_like")
    llm = openai_like.OpenAILike(
        api_base=f"{served.url}/v1",
        api_key="none",
        model="tandem",
        is_chat_model=True,
        max_retries=0,
        temperature=0.0,
        additional_kwargs={"seed": 5},
    )
    assert str(llm.complete(QUESTION)) == text
    chunks = list(llm.stream_complete(QUESTION))
    assert len(chunks) > 5
    assert chunks[-1].text == text
    types = pytest.importorskip("llama_index.core.llms")
    turns = [types.ChatMessage("Be brief.", role="system"), types.ChatMessage(QUESTION)]
    assert llm.chat(turns).message.content
    structured = llm.model_copy(update={"should_use_structured_outputs": True}).as_structured_llm(Rated)
    assert structured.complete(QUESTION).raw.stars in range(1, 6)


def test_llm_command(served: Served, text: str, tmp_path: Path) -> None:
    pytest.importorskip("llm")
    models = f"""
- model_id: tandem
  model_name: tandem
  api_base: "{served.url}/v1"
  supports_schema: true
"""
    (tmp_path / "extra-openai-models.yaml").write_text(models, "utf-8")
    system = ["-s", "Be brief.", "-o", "top_p", "0.9"]
    schema = [
        "--schema",
        "stars int",
        "-o",
        "max_tokens",
        "16",
    ]  # which allows more than that, without an end
    for flags in ([], ["--no-stream"], system, schema):
        done = subprocess.run(
            [
                sys.executable,
                *["-m", "llm", "-m", "tandem", "-o", "seed", "5", "--key", "none"],
                *flags,
                QUESTION,
            ],
            # Its plugin for SmolLM2 needs llama.cpp, which is not installed: Tandem only reads the model's file.
            env=os.environ | {"LLM_USER_PATH": str(tmp_path), "LLM_LOAD_PLUGINS": ""},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        if flags is schema:
            assert done.stdout.replace(" ", "").startswith('{"stars":'), done.stderr
        else:
            assert done.stdout.strip() == text, done.stderr
