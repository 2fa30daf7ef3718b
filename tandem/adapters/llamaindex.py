"""Tandem as a LlamaIndex LLM, in this process: `TandemLLM(tandem=tandem)`. Needs the extra [llamaindex]."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from tandem.adapters.asking import MODEL, Asking, check_options, merge_options
from tandem.client.answers import count_usage
from tandem.client.tandem import Tandem
from tandem.errors import QueryError, install_line
from tandem.events import Answer

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
        TextBlock,
    )
    from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
    from llama_index.core.llms.llm import LLM
except ImportError as error:
    raise ImportError(
        f"TandemLLM needs llama-index-core ({error}); run `{install_line('llamaindex')}`."
    ) from None
from pydantic import Field

ROLES = {
    MessageRole.SYSTEM: "system",
    MessageRole.DEVELOPER: "system",
    MessageRole.USER: "user",
    MessageRole.ASSISTANT: "assistant",
}


class TandemLLM(LLM):
    """Answers the last message by the documents and models of all parties; earlier ones are its history.

    Options count for every question; a call's own (`complete(question, seed=7)`) count before them.
    """

    tandem: Tandem = Field(exclude=True, repr=False)
    """Stays the caller's to close."""
    seed: int | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    stop: list[str] | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    """Further options of a query, such as {"num_documents": {"device": 2}}: see `QueryOptions`."""

    def model_post_init(self, context: Any, /) -> None:
        """Raises ConfigError or QueryError for options that no query could have."""
        super().model_post_init(context)
        check_options(self.tandem, self._merged({}))

    @classmethod
    def class_name(cls) -> str:
        """As LlamaIndex calls it."""
        return "TandemLLM"

    @property
    def metadata(self) -> LLMMetadata:
        """The smallest context of all parties, in which their documents must fit too.

        "No chat model": so LlamaIndex writes its own prompts as one text, without system messages, which are settings.
        """
        described = self.tandem.described.values()
        merged = self._merged({})
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
        answer = self.tandem.query(asking.question, **asking.options)
        return _response(asking, answer, self.tandem.count_tokens(*asking.texts))

    async def _answer_async(self, messages: Sequence[ChatMessage], call: dict[str, Any]) -> ChatResponse:
        asking = self._ask(messages, call)
        answer = await self.tandem.aquery(asking.question, **asking.options)
        return _response(asking, answer, await self.tandem.acount_tokens(*asking.texts))

    def _stream(self, asking: Asking) -> ChatResponseGen:
        text = ""
        for event in self.tandem.stream(asking.question, **asking.options):
            if delta := asking.push(event):
                text += delta
                yield _part(text, delta)
        yield _response(asking, asking.answer(), self.tandem.count_tokens(*asking.texts), delta="")

    async def _stream_async(self, asking: Asking) -> ChatResponseAsyncGen:
        text = ""
        async with contextlib.aclosing(self.tandem.astream(asking.question, **asking.options)) as events:
            async for event in events:
                if delta := asking.push(event):
                    text += delta
                    yield _part(text, delta)
        num_tokens = await self.tandem.acount_tokens(*asking.texts)
        yield _response(asking, asking.answer(), num_tokens, delta="")

    def _ask(self, messages: Sequence[ChatMessage], call: dict[str, Any]) -> Asking:
        return Asking(self.tandem, [_read_message(message) for message in messages], self._merged(call))

    def _merged(self, call: dict[str, Any]) -> dict[str, Any]:
        """The options of this model, and before them those of a call."""
        own = {name: getattr(self, name) for name in ("seed", "temperature", "max_tokens", "stop")}
        return merge_options(self.options, own, call)


def _as_messages(prompt: str) -> list[ChatMessage]:
    return [ChatMessage(role=MessageRole.USER, content=prompt)]


def _read_message(message: ChatMessage) -> tuple[str, str]:
    """Role and text. Raises QueryError for what is no message of text."""
    if message.role not in ROLES:
        raise QueryError(
            f"A message must be of the user, the assistant or the system, but one is of {message.role.value!r}; leave "
            "it out."
        )
    for block in message.blocks:
        if not isinstance(block, TextBlock):
            raise QueryError(
                f"A message must be text, but one has a part of type {block.block_type!r}; send text only."
            )
    return ROLES[message.role], message.content or ""


def _part(text: str, delta: str) -> ChatResponse:
    message = ChatMessage(role=MessageRole.ASSISTANT, content=text)
    return ChatResponse(message=message, delta=delta)


def _response(
    asking: Asking, answer: Answer, num_prompt_tokens: int, delta: str | None = None
) -> ChatResponse:
    """A whole answer, with what is known of it in `raw`."""
    usage = count_usage(num_prompt_tokens, answer.statistics.num_tokens)
    return ChatResponse(
        message=ChatMessage(role=MessageRole.ASSISTANT, content=answer.text),
        delta=delta,
        raw={**asking.metadata(answer), "usage": usage},
        additional_kwargs=usage,
    )
