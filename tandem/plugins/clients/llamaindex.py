"""Tandem as a LlamaIndex LLM, in this process: `TandemLLM(tandem=tandem)`. Needs the extra [llamaindex]."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from tandem.client.answers import count_usage
from tandem.errors import install_line
from tandem.events import Answer
from tandem.plugins.clients.asking import MODEL, Answering, Asking, check_message

try:
    from llama_index.core.base.llms.generic_utils import (
        astream_chat_response_to_completion_response,
        chat_response_to_completion_response,
        stream_chat_response_to_completion_response,
    )
    from llama_index.core.base.llms.types import (
        ChatMessage,
        ChatResponse,
        ChatResponseAsyncGen,
        ChatResponseGen,
        CompletionResponse,
        CompletionResponseAsyncGen,
        CompletionResponseGen,
        LLMMetadata,
        MessageRole,
    )
    from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
    from llama_index.core.llms.llm import LLM
    from llama_index.core.schema import NodeWithScore, TextNode
except ImportError as error:
    raise ImportError(
        f"TandemLLM needs llama-index-core ({error}); run `{install_line('llamaindex')}`."
    ) from None

ROLES = {
    MessageRole.SYSTEM: "system",
    MessageRole.DEVELOPER: "system",
    MessageRole.USER: "user",
    MessageRole.ASSISTANT: "assistant",
}


class TandemLLM(Answering, LLM):
    """Answers the last message by the documents and models of all parties; earlier ones are its history."""

    @classmethod
    def class_name(cls) -> str:
        """The name that LlamaIndex uses."""
        return "TandemLLM"

    @property
    def metadata(self) -> LLMMetadata:
        """The smallest context of all parties, in which their documents must fit too.

        "No chat model": so LlamaIndex writes its own prompts as one text, without system messages,
        with which stored caches of documents would not serve.
        """
        described = self.tandem.described.values()
        merged = self.merged({})
        return LLMMetadata(
            context_window=min(about["context_length"] for about in described),
            num_output=merged.get("max_new_tokens", self.tandem.config.sampling.max_new_tokens),
            is_chat_model=False,
            model_name=MODEL,
        )

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """The answer to the last message. kwargs: options of a query. Raises QueryError or ConfigError."""
        return self._answer(messages, kwargs)

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Async twin of `chat`."""
        return await self._answer_async(messages, kwargs)

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        """The answer as it grows; what is known of it comes last, without new text."""
        return self._stream(self._ask(messages, kwargs))

    @llm_chat_callback()
    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseAsyncGen:
        """Async twin of `stream_chat`."""
        return self._stream_async(self._ask(messages, kwargs))

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """The answer to a prompt, which is the question."""
        return chat_response_to_completion_response(self._answer(_as_messages(prompt), kwargs))

    @llm_completion_callback()
    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Async twin of `complete`."""
        return chat_response_to_completion_response(await self._answer_async(_as_messages(prompt), kwargs))

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        """The answer to a prompt as it grows."""
        responses = self._stream(self._ask(_as_messages(prompt), kwargs))
        return stream_chat_response_to_completion_response(responses)

    @llm_completion_callback()
    async def astream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponseAsyncGen:
        """Async twin of `stream_complete`."""
        responses = self._stream_async(self._ask(_as_messages(prompt), kwargs))
        return astream_chat_response_to_completion_response(responses)

    def _answer(self, messages: Sequence[ChatMessage], call: dict[str, Any]) -> ChatResponse:
        asking = self._ask(messages, call)
        asking.query()
        return _response(asking)

    async def _answer_async(self, messages: Sequence[ChatMessage], call: dict[str, Any]) -> ChatResponse:
        asking = self._ask(messages, call)
        await asking.aquery()
        return _response(asking)

    def _stream(self, asking: Asking) -> ChatResponseGen:
        text = ""
        for delta in asking.stream():
            text += delta
            yield _part(text, delta)
        yield _response(asking, delta="")

    async def _stream_async(self, asking: Asking) -> ChatResponseAsyncGen:
        text = ""
        async with contextlib.aclosing(asking.astream()) as pieces:
            async for delta in pieces:
                text += delta
                yield _part(text, delta)
        yield _response(asking, delta="")

    def _ask(self, messages: Sequence[ChatMessage], call: dict[str, Any]) -> Asking:
        return Asking(self.tandem, [_read_message(message) for message in messages], self.merged(call))


def _as_messages(prompt: str) -> list[ChatMessage]:
    return [ChatMessage(role=MessageRole.USER, content=prompt)]


def _read_message(message: ChatMessage) -> tuple[str, str]:
    """Role and text. Raises QueryError for what is no message of text."""
    kinds = (block.block_type for block in message.blocks)
    return check_message(ROLES.get(message.role), message.role.value, kinds), message.content or ""


def _part(text: str, delta: str) -> ChatResponse:
    message = ChatMessage(role=MessageRole.ASSISTANT, content=text)
    return ChatResponse(message=message, delta=delta)


def _response(asking: Asking, delta: str | None = None) -> ChatResponse:
    """A whole answer, with what is known of it in `raw`, and the home's documents as nodes."""
    answer = asking.answer
    usage = count_usage(asking.num_prompt_tokens, answer.statistics.num_tokens)
    return ChatResponse(
        message=ChatMessage(role=MessageRole.ASSISTANT, content=answer.text),
        delta=delta,
        raw={**asking.metadata(), "usage": usage},
        additional_kwargs={**usage, "source_nodes": _source_nodes(answer)},
    )


def _source_nodes(answer: Answer) -> list[NodeWithScore]:
    """The home's documents, each with what it said of the text: [start, end, share] in characters."""
    return [
        NodeWithScore(
            node=TextNode(
                id_=source.id,
                text=source.text or "",
                metadata={
                    "title": source.title,
                    "page": source.page,
                    "party": source.party,
                    "spans": [
                        [span.start, span.end, round(span.share, 4)]
                        for span in answer.citations
                        if span.document == number
                    ],
                },
            ),
            score=source.score,
        )
        for number, source in enumerate(answer.own_sources)
    ]
