"""Tandem's own interface: the typed events of one query as server-sent events, and the status of the parties."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from fastapi import APIRouter, Request

from tandem.client.answers import new_seed, to_plain
from tandem.client.request import QueryOptions
from tandem.errors import TandemError
from tandem.events import Event
from tandem.server.bodies import read_object
from tandem.server.errors import failure, unknown
from tandem.server.plain import EVENT_NAMES, compact
from tandem.server.queries import RunningQuery
from tandem.server.service import service_of
from tandem.server.status import describe
from tandem.server.streams import EventStream, encode_event

router = APIRouter(prefix="/v1/tandem")
TANDEM_OPTIONS = tuple(name for name in QueryOptions.__annotations__ if name not in ("sampling", "resumable"))
"""Options of a query that JSON can hold; a file on this machine is nothing for its clients."""


@router.post("/events")
async def stream_events(request: Request) -> EventStream:
    """Answer {"question", "history", further options of a query} by its events as they happen."""
    service = service_of(request)
    options = await read_object(request, service.limits.max_body_bytes)
    question = options.pop("question", "")
    check_names(options)
    if options.get("seed") is None:
        options["seed"] = new_seed()
    query = service.start(question, options)
    return EventStream(_encoded(query, options["seed"]), query, service.limits.send_timeout_s)


@router.get("/status")
async def status(request: Request) -> dict[str, Any]:
    """Parties, documents, link and open queries."""
    service = service_of(request)
    state = await asyncio.to_thread(service.tandem.status)
    return describe(state, service.tandem.config, service.queries)


def check_names(options: Mapping[str, Any]) -> None:
    """Raises ApiError for an option that a query does not have."""
    for name in options:
        if name not in TANDEM_OPTIONS:
            raise unknown(name, TANDEM_OPTIONS)


async def _encoded(query: RunningQuery, seed: int) -> AsyncIterator[bytes]:
    yield encode_event("query", json.dumps({"seed": seed}))
    try:
        async for event in query:
            yield encode_event(*_named(event))
    except TandemError as error:
        yield encode_event("error", json.dumps(failure(error).as_dict()))


def _named(event: Event) -> tuple[str, str]:
    return EVENT_NAMES[type(event)], compact(to_plain(event))
