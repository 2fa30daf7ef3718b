"""Tandem for clients of the Model Context Protocol: tools that ask, search the party's own documents, and read them."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Annotated, Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.transport_security import TransportSecuritySettings
from mcp.types import CallToolResult, TextContent, ToolAnnotations
from pydantic import Field, TypeAdapter, ValidationError, WithJsonSchema

from tandem import __version__
from tandem.actors.loading import load_embedder_and_scorer
from tandem.cli.output import describe_place
from tandem.client.answers import Trimmer, describe, new_seed, require_answer
from tandem.client.tandem import Tandem
from tandem.conversation import MessageDict
from tandem.errors import TandemError
from tandem.events import Answer, Event, TokenEvent
from tandem.plugins.server.access import Guard, GuardedApp
from tandem.plugins.server.http import SIGN_S
from tandem.plugins.server.logs import log_failure
from tandem.plugins.server.metrics import Metrics
from tandem.retrieval.documents import describe_passage
from tandem.retrieval.retriever import open_retriever

PATH = "/mcp"  # for clients of HTTP
MAX_PASSAGES = 64
INSTRUCTIONS = (
    "Answers come from the user's own documents and from those of a cloud that does not see them. `ask` answers a "
    "question and names its sources; `search` finds passages of the user's own documents; `sources` gives the text "
    "of passages by their ids. What `search` and `sources` return is private text of the user."
)
READING = ToolAnnotations(read_only_hint=True, destructive_hint=False, open_world_hint=False)


Question = Annotated[str, Field(description="what to ask, in the user's language")]
Turn = Annotated[MessageDict, WithJsonSchema(TypeAdapter(MessageDict).json_schema())]
"""Its schema stands in its place: several clients know no references."""
Turns = Annotated[list[Turn] | None, Field(description="earlier messages of the conversation, oldest first")]
Count = Annotated[int, Field(ge=1, le=MAX_PASSAGES, description="passages to find, at most")]
Filter = Annotated[
    dict[str, Any] | None,
    Field(description='metadata that passages must have, such as {"source": "notes.md", "page": [1, 2]}'),
]
Ids = Annotated[list[str], Field(min_length=1, max_length=MAX_PASSAGES, description="ids of own passages")]
Result = Annotated[CallToolResult, dict[str, Any]]


class Tools:
    """The tools' work. Its index is opened at the first search, as `tandem search` opens it."""

    def __init__(self, tandem: asyncio.Future[Tandem]) -> None:
        self._tandem = tandem
        self._retriever: asyncio.Future[Any] | None = None  # of the own documents

    async def ask(self, question: Question, context: Context, conversation: Turns = None) -> Result:
        """Answer a question from the documents of all parties; earlier messages count if they are given.

        The answer comes with its sources: those of the user by title, of others by an opaque id.
        """
        seed = new_seed()
        tandem = await asyncio.shield(self._tandem)
        events = tandem.astream(question, seed=seed, history=conversation)
        answering = asyncio.ensure_future(follow(events, seed, context.report_progress))
        try:
            answer = await asyncio.shield(answering)
        except asyncio.CancelledError:
            answering.cancel()  # ends the query at all parties, for which this scope leaves no time
            raise
        text = f"{answer.text}\n\n{cite(answer)}".strip()
        return make_result(text, {"answer": answer.text, **describe(answer)})

    async def search(self, question: Question, k: Count = 5, filter: Filter = None) -> Result:
        """Find passages of the user's own documents, best first. No model answers, and nothing crosses the link."""
        retriever = await self._open()
        hits = await asyncio.to_thread(retriever.search, question, k, filter=filter)
        return passages(
            [{"id": hit.id, "score": hit.score, **describe_passage(hit.document)} for hit in hits]
        )

    async def sources(self, ids: Ids) -> Result:
        """The text of passages of the user's own documents, by their ids in answers and searches."""
        site = next(iter((await asyncio.shield(self._tandem)).sites.values()))
        by_id = dict(zip(ids, await site.passages(ids), strict=True))
        if missing := [name for name, passage in by_id.items() if not passage]:
            index = getattr(await self._open(), "index", None)
            if index is None:  # a store of LangChain gives no passage by its id
                raise TandemError(
                    f"No passage with the id {missing[0]!r:.60} was found here yet; search for it."
                )
            documents = await asyncio.to_thread(lambda: index.documents(index.rows(missing)))
            by_id |= {name: describe_passage(each) for name, each in zip(missing, documents, strict=True)}
        return passages([{"id": name, **passage} for name, passage in by_id.items()])

    async def _open(self) -> Any:
        """The retriever of the own documents, with an embedder of its own. Raises TandemError."""
        tandem = await asyncio.shield(self._tandem)
        if self._retriever is None or (self._retriever.done() and self._retriever.exception()):
            party, config = next(iter(tandem.sites)), tandem.config
            opening = asyncio.to_thread(
                lambda: open_retriever(party, config, *load_embedder_and_scorer(config))
            )
            self._retriever = asyncio.ensure_future(opening)
        return await asyncio.shield(self._retriever)


class ToolServer(MCPServer[None]):
    """A server of tools, whose errors are sentences."""

    loading: asyncio.Future[Tandem]

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        """Call a tool. Raises ToolError with one sentence; what nobody foresaw is only logged."""
        signs = asyncio.create_task(self._give_signs(context))
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            match error.__cause__:
                case TandemError() as cause:
                    sentence = str(cause)
                case ValidationError() as cause:
                    sentence = explain(name, cause)
                case Exception() as cause:
                    log_failure(name, cause)
                    sentence = f"The tool {name} failed on this call; see the server's log."
                case _:
                    sentence = f"There is no tool {name!r:.60}; use ask, search or sources."
        finally:
            signs.cancel()
        raise ToolError(sentence)

    async def _give_signs(self, context: Any) -> None:
        """Progress without text while models load, since clients give up on a call that is silent."""
        for number in itertools.count():
            if self.loading.done():
                return
            await context.report_progress(number / (number + 1), message="")
            await asyncio.wait({self.loading}, timeout=SIGN_S)


def make_server(tandem: asyncio.Future[Tandem]) -> ToolServer:
    """The server of a Tandem, which may still be loading and stays the caller's to close."""
    server = ToolServer(
        "tandem", title="Tandem", instructions=INSTRUCTIONS, version=__version__, log_level="ERROR"
    )
    logging.getLogger("mcp").setLevel(logging.CRITICAL)  # its messages may quote what was asked
    server.loading = tandem
    tools = Tools(tandem)
    for tool in (tools.ask, tools.search, tools.sources):
        server.add_tool(tool, description=inspect.getdoc(tool), annotations=READING)
    return server


def make_app(server: ToolServer, key: str, host: str, allowed_hosts: Sequence[str]) -> GuardedApp:
    """Its streamable HTTP, for the same requests as `tandem serve`; `server.session_manager` has to run around it."""
    unchecked = TransportSecuritySettings(enable_dns_rebinding_protection=False)  # the guard knows more
    app = server.streamable_http_app(streamable_http_path=PATH, transport_security=unchecked)
    return GuardedApp(app, Guard(key, host, allowed_hosts), Metrics())


async def follow(events: AsyncGenerator[Event, None], seed: int, report: Callable[..., Any]) -> Answer:
    """The answer that these events make up, each piece of its text reported as it comes. Raises QueryError."""
    seen: list[Event] = []
    trimmer = Trimmer()
    async with contextlib.aclosing(events):
        async for event in events:
            seen.append(event)
            if isinstance(event, TokenEvent) and (text := trimmer.push(event.text)):
                await report(event.step + 1, message=text)
    return require_answer(seen, seed)


def cite(answer: Answer) -> str:
    """The sources of an answer as text, for clients that show nothing else."""
    own = [f"- {describe_place(it.title, it.page, None)} [{it.id}]" for it in answer.sources if it.title]
    others = Counter(source.party for source in answer.sources if not source.title)
    lines = [*own, *(f"- {count} of the {party}'s documents" for party, count in others.items())]
    return "\n".join(("Sources:", *lines)) if lines else ""


def passages(hits: Sequence[Mapping[str, Any]]) -> CallToolResult:
    """Passages as a tool's result."""
    places = [describe_place(each["title"], each["page"], None) for each in hits]
    texts = [f"[{each['id']}] {place}\n{each['text']}" for each, place in zip(hits, places, strict=True)]
    return make_result("\n\n".join(texts) or "Nothing was found.", {"passages": list(hits)})


def make_result(text: str, structured: dict[str, Any]) -> CallToolResult:
    """A tool's result."""
    return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=structured)


def explain(tool: str, error: ValidationError) -> str:
    """The sentence for wrong arguments of a call; it quotes the first that is wrong."""
    first = error.errors(include_url=False)[0]
    argument = ".".join(str(part) for part in first["loc"])
    if first["type"] == "missing":
        return f"The tool {tool} needs the argument {argument}; give it."
    problem = first["msg"][0].lower() + first["msg"][1:]
    return f"The argument {argument} of the tool {tool} is wrong: {problem} (got {first['input']!r:.60}); correct it."
