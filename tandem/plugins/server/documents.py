"""Routes for the device's own documents: list them, add a file with its progress as server-sent events, delete one.

Only where the device's site runs in the server's process, and never those of another party.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from tandem.errors import TandemError
from tandem.plugins.server.document_store import DocumentStore, read_endings, why_no_name
from tandem.plugins.server.http import HEADERS, ApiError, bad_request, compact, encode_event, read_parts
from tandem.plugins.server.logs import log_failure
from tandem.plugins.server.queries import Service, service_of
from tandem.retrieval.loaders import NothingReadError

router = APIRouter(prefix="/v1/tandem/documents")
ELSEWHERE = (
    "Files cannot be added here: this server does not run the device, or the device uses no documents; use "
    "`tandem index device --add FILE` on its machine."
)

_running: set[asyncio.Task[None]] = set()


@router.get("")
async def list_documents(request: Request) -> Response:
    """The device's documents, if it is at home here, and what can be added."""
    service = service_of(request)
    store = service.documents
    about = {
        "can_add": store is not None,
        "note": ELSEWHERE if store is None else None,
        "kinds": read_endings(),
        "max_bytes": service.limits.max_document_bytes,
    }
    try:
        listed = "" if store is None else await asyncio.to_thread(_list, store)
    except TandemError as error:
        raise ApiError(500, str(error), code="index_unreadable") from None
    return Response(f'{compact(about)[:-1]},"documents":[{listed}]}}', media_type="application/json")


def _list(store: DocumentStore) -> str:
    """The documents as JSON, written one by one: of ten thousands in one go the loop would notice."""
    return ",".join(map(compact, store.list_documents()))


@router.post("")
async def add_document(request: Request, name: str = "") -> StreamingResponse:
    """Index the file that is the body, under the name ?name=FILE.

    Events: "progress" {num_done, num_total}, then "indexed" {name, num_added, num_embedded, is_unchanged, problems}, or
    "error". What is wrong with the file itself is refused with a status before.
    """
    service, store = _store_of(request)
    _check_name(name)
    try:
        is_elsewhere = await asyncio.to_thread(store.is_elsewhere, name)
    except TandemError as error:
        raise ApiError(500, str(error), code="index_unreadable") from None
    if is_elsewhere:
        raise ApiError(
            409,
            f"The device's folder has a document named {name!r:.100} already; change it there, or rename this file.",
            param="name",
            code="document_exists",
        )
    async with AsyncExitStack() as stack:
        content = stack.enter_context(store.receive(name))
        await _save(request, content, service.limits.max_document_bytes)
        indexing = Indexing(store, name, content, stack.pop_all())
    if (problem := await indexing.problem()) is not None:
        raise bad_request(problem, "name", "unreadable_document")
    return StreamingResponse(indexing.events(), media_type="text/event-stream", headers=HEADERS)


@router.delete("/{name}")
async def delete_document(request: Request, name: str) -> Response:
    """Delete a document that was added here."""
    _, store = _store_of(request)
    _check_name(name)
    if not store.has(name):
        raise ApiError(
            404,
            f"Only a document that was added here can be deleted, but {name!r:.100} was not; see the list.",
            param="name",
            code="document_not_found",
        )
    try:
        async with store.turn:
            await asyncio.to_thread(store.delete, name)
    except TandemError as error:
        raise ApiError(500, str(error), code="indexing_failed") from None
    return Response(status_code=204)


def _store_of(request: Request) -> tuple[Service, DocumentStore]:
    """Raises ApiError where the device is not at home here."""
    service = service_of(request)
    if service.documents is None:
        raise ApiError(409, ELSEWHERE, code="device_elsewhere")
    return service, service.documents


def _check_name(name: str) -> None:
    problem = why_no_name(name)
    if problem is not None:
        raise bad_request(problem, "name", "invalid_name")


async def _save(request: Request, path: Path, max_bytes: int) -> None:
    """Write the body to a file. Raises ApiError if it is longer."""
    remedy = "split it, or add its folder with `tandem index`"
    with path.open("wb") as file:
        async for part in read_parts(request, max_bytes, "A document", remedy, "document_too_large"):
            await asyncio.to_thread(file.write, part)


class Indexing:
    """Indexes one file, to its end even if the client leaves."""

    def __init__(self, store: DocumentStore, name: str, content: Path, stack: AsyncExitStack) -> None:
        """stack: closed at the end."""
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._problem: asyncio.Future[str | None] = self._loop.create_future()
        self._note("progress", num_done=0, num_total=0)
        task = asyncio.create_task(self._run(store, name, content, stack), name="indexing")
        _running.add(task)
        task.add_done_callback(_running.discard)

    async def problem(self) -> str | None:
        """The problem of the file, once that is known: it was read when passages of it are embedded."""
        return await asyncio.shield(self._problem)

    async def events(self) -> AsyncIterator[bytes]:
        """Server-sent events until it has ended."""
        while (event := await self._events.get()) is not None:
            yield event

    async def _run(self, store: DocumentStore, name: str, content: Path, stack: AsyncExitStack) -> None:
        async with stack:
            try:
                async with store.turn:
                    report = await asyncio.to_thread(store.add, name, content, self._note_progress)
                self._note(
                    "indexed",
                    name=name,
                    num_added=report.num_added,
                    num_embedded=report.num_embedded,
                    is_unchanged=report.is_unchanged,
                    problems=report.problems,
                )
            except NothingReadError as error:
                self._problem.set_result(str(error))
            except Exception as error:
                self._note("error", **_explain(error).as_dict())
            finally:
                self._know_no_problem()
                self._loop.call_soon(self._events.put_nowait, None)

    def _know_no_problem(self) -> None:
        if not self._problem.done():
            self._problem.set_result(None)

    def _note_progress(self, num_done: int, num_total: int) -> None:
        self._loop.call_soon_threadsafe(self._know_no_problem)
        self._note("progress", num_done=num_done, num_total=num_total)

    def _note(self, event: str, **fields: Any) -> None:
        """Note a change, from any thread."""
        self._loop.call_soon_threadsafe(self._events.put_nowait, encode_event(event, json.dumps(fields)))


def _explain(error: Exception) -> ApiError:
    if isinstance(error, TandemError):
        return ApiError(500, str(error), code="indexing_failed")
    log_failure("indexing", error)
    return ApiError(500, f"The server failed on this file with {type(error).__name__}; see its log.")
