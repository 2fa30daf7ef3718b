"""Tandem as a LangChain chat model, in this process: `ChatTandem(tandem=tandem)`.

Embeddings and retrievers are in `tandem.plugins.clients.stores`.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, cast

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    UsageMetadata,
)
from langchain_core.messages.content import Citation, create_citation
from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.utils.function_calling import convert_to_json_schema
from pydantic import BaseModel

from tandem.client.answers import fingerprint
from tandem.events import Answer
from tandem.plugins.clients.asking import MODEL, Answering, Asking, check_message

ROLES: dict[type[BaseMessage], str] = {SystemMessage: "system", HumanMessage: "user", AIMessage: "assistant"}


class ChatTandem(Answering, BaseChatModel):
    """Answers the last message by the documents and models of all parties; earlier ones are its history."""

    @property
    def _llm_type(self) -> str:
        return MODEL

    @property
    def _identifying_params(self) -> dict[str, Any]:
        """All that an answer depends on but the documents; LangChain's caches go by it."""
        return {
            "model_name": MODEL,
            "system_fingerprint": fingerprint(self.tandem.described),
            **self.merged({}),
        }

    def get_num_tokens(self, text: str) -> int:
        """The number of tokens as the models count them."""
        return self.tandem.count_tokens(text)

    def with_structured_output(
        self, schema: dict[str, Any] | type, *, include_raw: bool = False, **kwargs: Any
    ) -> Runnable[LanguageModelInput, dict[str, Any] | BaseModel]:
        """This model, whose answers follow a schema and are read as that: an object of a pydantic class, else a dict.

        Needs the extra [grammar]. kwargs: LangChain's own, such as method, of which there is one here.
        """
        if include_raw:
            raise NotImplementedError("include_raw is not supported; bind a grammar and parse the text.")
        parser: Any = JsonOutputParser()
        if isinstance(schema, type) and issubclass(schema, BaseModel):
            parser = PydanticOutputParser(pydantic_object=schema)
        answering = self.bind(grammar={"json_schema": convert_to_json_schema(schema)})
        return cast("Runnable[LanguageModelInput, dict[str, Any] | BaseModel]", answering | parser)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        asking = self._ask(messages, stop, kwargs)
        asking.query()
        return _result(asking)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        asking = self._ask(messages, stop, kwargs)
        await asking.aquery()
        return _result(asking)

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        asking = self._ask(messages, stop, kwargs)
        for text in asking.stream():
            chunk = ChatGenerationChunk(message=AIMessageChunk(content=text))
            if run_manager:
                run_manager.on_llm_new_token(text, chunk=chunk)
            yield chunk
        yield _last_chunk(asking)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        asking = self._ask(messages, stop, kwargs)
        async with contextlib.aclosing(asking.astream()) as texts:
            async for text in texts:
                chunk = ChatGenerationChunk(message=AIMessageChunk(content=text))
                if run_manager:
                    await run_manager.on_llm_new_token(text, chunk=chunk)
                yield chunk
        yield _last_chunk(asking)

    def _ask(self, messages: Sequence[BaseMessage], stop: list[str] | None, call: dict[str, Any]) -> Asking:
        options = self.merged({**call, "stop": stop})
        return Asking(self.tandem, [_read_message(message) for message in messages], options)


def _read_message(message: BaseMessage) -> tuple[str, str]:
    """Role and text. Raises QueryError for what is no message of text."""
    role = next((role for kind, role in ROLES.items() if isinstance(message, kind)), None)
    blocks = [message.content] if isinstance(message.content, str) else message.content
    kinds = ["text" if isinstance(block, str) else block.get("type") for block in blocks]
    calls = message.tool_calls if isinstance(message, AIMessage) else []
    kinds += ["tool_call" for _ in calls]
    role = check_message(role, message.type, kinds)
    return role, "\n".join(block if isinstance(block, str) else block["text"] for block in blocks)


def _result(asking: Asking) -> ChatResult:
    message = AIMessage(asking.answer.text, **_details(asking))
    return ChatResult(generations=[ChatGeneration(message=message)])


def _last_chunk(asking: Asking) -> ChatGenerationChunk:
    """What is known of an answer, without text."""
    message = AIMessageChunk(content="", chunk_position="last", **_details(asking))
    return ChatGenerationChunk(message=message)


def _details(asking: Asking) -> dict[str, Any]:
    """The fields of a message besides its text."""
    answer, about = asking.answer, asking.metadata()
    cited = about["tandem"]["citations"]
    usage = UsageMetadata(
        input_tokens=asking.num_prompt_tokens,
        output_tokens=answer.statistics.num_tokens,
        total_tokens=asking.num_prompt_tokens + answer.statistics.num_tokens,
    )
    return {
        "usage_metadata": usage,
        "response_metadata": about,
        "additional_kwargs": {"annotations": _annotations(answer, cited)} if answer.citations else {},
    }


def _annotations(answer: Answer, cited: Sequence[dict[str, Any]]) -> list[Citation]:
    """What the home's documents said of the text (`describe`), as LangChain has it; the passage is the cited text."""
    return [
        create_citation(
            id=f"tandem-{answer.session}-{number}",
            title=each["title"],
            start_index=each["start"],
            end_index=each["end"],
            cited_text=answer.sources[each["source"]].text,
            document_id=each["id"],
            page=each["page"],
            share=each["share"],
        )
        for number, each in enumerate(cited)
    ]
