"""Routes for the device's own documents: list them, add a file with its progress as server-sent events, delete one.

Only where the device's site runs in the server's process, and never those of another party.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from asyncio import Queue
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from tandem.errors import TandemError
from tandem.plugins.server.document_store import DocumentStore, read_endings, why_no_name
from tandem.plugins.server.http import HEADERS, ApiError, bad_request, compact, encode_event, read_parts
from tandem.plugins.server.logs import log_failure
from tandem.plugins.server.queries import service_of
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
    with _failing_as("index_unreadable"):
        listed = "" if store is None else await asyncio.to_thread(_list, store)
    return Response(f'{compact(about)[:-1]},"documents":[{listed}]}}', media_type="application/json")


def _list(store: DocumentStore) -> str:
    """The documents as JSON, each by itself: of ten thousands in one go the loop would notice."""
    return ",".join(map(compact, store.list_documents()))


@router.post("")
async def add_document(request: Request, name: str = "") -> StreamingResponse:
    """Index the file that is the body, under the name ?name=FILE.

    Events: "progress" {num_done, num_total}, then "indexed" {name, num_added, num_embedded, is_unchanged, problems}, or
    "error". What is wrong with the file itself is refused with a status before.
    """
    max_bytes, store = service_of(request).limits.max_document_bytes, _store_for(request, name)
    with _failing_as("index_unreadable"):
        is_elsewhere = await asyncio.to_thread(store.is_elsewhere, name)
    if is_elsewhere:
        shown = f"{name!r:.100}"
        message = (
            f"The device's folder has a document named {shown} already; change it there, or rename this file."
        )
        raise ApiError(409, message, param="name", code="document_exists")
    async with AsyncExitStack() as stack:
        content = stack.enter_context(store.receive(name))
        remedy = "split it, or add its folder with `tandem index`"
        with content.open("wb") as file:
            async for part in read_parts(request, max_bytes, "A document", remedy, "document_too_large"):
                await asyncio.to_thread(file.write, part)
        indexing = _start_indexing(store, name, content, stack.pop_all())
    begun, event = await indexing.get(), await indexing.get()
    if isinstance(event, NothingReadError):
        raise bad_request(str(event), "name", "unreadable_document")

    async def events() -> AsyncIterator[bytes]:
        yield begun
        following = event
        while following is not None:
            yield following
            following = await indexing.get()

    return StreamingResponse(events(), media_type="text/event-stream", headers=HEADERS)


@router.delete("/{name}")
async def delete_document(request: Request, name: str) -> Response:
    """Delete a document that was added here."""
    store = _store_for(request, name)
    if not store.has(name):
        shown = f"{name!r:.100}"
        message = f"Only a document that was added here can be deleted, but {shown} was not; see the list."
        raise ApiError(404, message, param="name", code="document_not_found")
    with _failing_as("indexing_failed"):
        async with store.turn:
            await asyncio.to_thread(store.delete, name)
    return Response(status_code=204)


@contextlib.contextmanager
def _failing_as(code: str) -> Iterator[None]:
    """What fails is an error of the server, with this code."""
    try:
        yield
    except TandemError as error:
        raise ApiError(500, str(error), code=code) from None


def _store_for(request: Request, name: str) -> DocumentStore:
    """Raises ApiError where the device is not at home here, or no document can have this name."""
    store = service_of(request).documents
    if store is None:
        raise ApiError(409, ELSEWHERE, code="device_elsewhere")
    if (problem := why_no_name(name)) is not None:
        raise bad_request(problem, "name", "invalid_name")
    return store


def _start_indexing(store: DocumentStore, name: str, content: Path, stack: AsyncExitStack) -> Queue[Any]:
    """Index a file, to the end even if the client leaves. stack: closed at the end.

    Returns: receives server-sent events and then None. The second item comes when the file was read: `NothingReadError`
    where it gives no text.
    """
    loop, events = asyncio.get_running_loop(), Queue[Any]()

    def note(event: str, **fields: Any) -> None:  # from any thread
        loop.call_soon_threadsafe(events.put_nowait, encode_event(event, json.dumps(fields)))

    async def run() -> None:
        async with stack:
            try:
                async with store.turn:
                    report = await asyncio.to_thread(
                        store.add,
                        name,
                        content,
                        lambda done, total: note("progress", num_done=done, num_total=total),
                    )
                note("indexed", name=name, **report._asdict())
            except NothingReadError as error:
                loop.call_soon(events.put_nowait, error)
            except TandemError as error:
                note("error", **ApiError(500, str(error), code="indexing_failed").as_dict())
            except Exception as error:
                log_failure("indexing", error)
                problem = f"The server failed on this file with {type(error).__name__}; see its log."
                note("error", **ApiError(500, problem).as_dict())
            finally:
                loop.call_soon(events.put_nowait, None)

    note("progress", num_done=0, num_total=0)
    task = asyncio.create_task(run(), name="indexing")
    _running.add(task)
    task.add_done_callback(_running.discard)
    return events
