"""The application: routes, Tandem's own interface, errors, and the page."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from functools import cache
from importlib.resources import files
from inspect import signature
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from tandem import __version__, plugins
from tandem.client.answers import new_seed, to_plain
from tandem.client.request import QueryOptions, read_clients_options
from tandem.client.tandem import Tandem
from tandem.config.parties import NO_INDEX
from tandem.config.schema import Config, placement_of
from tandem.corpora import TOYS, example_questions
from tandem.errors import TandemError, did_you_mean
from tandem.events import EVENT_TYPES
from tandem.plugins.server.access import GUIDE, Guard, GuardedApp, on_error
from tandem.plugins.server.document_store import DocumentStore
from tandem.plugins.server.http import (
    LIMITS,
    ApiError,
    EventStream,
    ServerLimits,
    bad_request,
    compact,
    encode_event,
    failure,
    read_object,
)
from tandem.plugins.server.queries import Service, service_of

EVENT_NAMES = {kind: name for name, kind in EVENT_TYPES.items()}
TANDEM_OPTIONS = sorted(name for name in QueryOptions.__annotations__ if name != "sampling")
"""Options of a query that JSON can hold; a file on this machine is nothing for its clients."""
SHOWN_OF_PARTY = ("model", "num_documents", "corpus", "factory", "embedder", "context_length")
COUNTED = ("sent_bytes", "received_bytes", "sent_frames", "received_frames")
QUEUE = "/draft_queue"
_examples = cache(example_questions)  # the page asks for the status every few seconds

router = APIRouter()


@router.api_route("/health", methods=["GET", "HEAD"])
async def health() -> dict[str, str]:
    """Whether the server takes requests."""
    return {"status": "ok"}


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Metrics as Prometheus reads them."""
    service = service_of(request)
    state, config = await asyncio.to_thread(service.tandem.status), service.tandem.config
    home = _home(state, config)
    peers = {party: _is_connected(party, state) for party in config.parties if party != home}
    return Response(service.metrics.render(state, peers), media_type=CONTENT_TYPE_LATEST)


@router.post("/v1/tandem/events")
async def stream_events(request: Request) -> EventStream:
    """Answer {"question", "history", further options of a query} by its events as they happen."""
    service = service_of(request)
    options = await read_object(request, service.limits.max_body_bytes)
    question = options.pop("question", "")
    for name in options:
        if name not in TANDEM_OPTIONS:
            problem = f"There is no option {name!r:.60}; {did_you_mean(name, TANDEM_OPTIONS)}"
            raise bad_request(problem, name, "unknown_parameter")
    options = {"seed": new_seed(), **read_clients_options(options)}
    query = service.start(question, options)

    async def encoded() -> AsyncIterator[bytes]:
        yield encode_event("query", json.dumps({"seed": options["seed"]}))
        try:
            async for event in query:
                yield encode_event(EVENT_NAMES[type(event)], compact(to_plain(event)))
        except TandemError as error:
            yield encode_event("error", json.dumps(failure(error).as_dict()))

    return EventStream(encoded(), query.close, service.limits.send_timeout_s)


@router.get("/v1/tandem/status")
async def status(request: Request) -> dict[str, Any]:
    """Parties, documents, link and open queries, as the page shows them.

    The link's bytes are those of the home party's draft queue since it started.
    """
    service = service_of(request)
    state, config = await asyncio.to_thread(service.tandem.status), service.tandem.config
    home = _home(state, config)
    parties = [_party(party, state) for party in config.parties]
    corpora = {party["corpus"] for party in parties}
    queue: dict[str, Any] = next((actor for actor in state["actors"] if actor["name"] == home + QUEUE), {})
    return {
        "version": __version__,
        "mode": config.decoding.mode,
        "placement": placement_of(config.decoding),
        "home": home,
        "is_alone": config.is_alone and state["parties"].get("cloud", {}).get("factory") == NO_INDEX,
        "deployment": state["cluster"],
        "parties": parties,
        "examples": _examples(*corpora) if len(corpora) == 1 else [],
        "links": [
            {"peer": name.partition("/")[0], **{key: counters[key] for key in COUNTED}}
            for name, counters in queue.get("links", {}).items()
            if name.endswith(QUEUE)
        ],
        "queries": {"num_open": service.num_open, "max_open": service.max_queries},
    }


@router.get("/v1/tandem/actors")
async def actors(request: Request) -> Any:
    """All that the parties report of themselves, as `tandem status --json` shows it."""
    return to_plain(await asyncio.to_thread(service_of(request).tandem.status))


@router.api_route("/v1/{path:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
async def refuse(request: Request, path: str) -> None:
    """Refuse everything else of an interface that this server has in part."""
    raise ApiError(404, f"There is no {request.method} /v1/{path:.100}; see {GUIDE}.", code="not_found")


def create_app(
    tandem: Tandem,
    *,
    key: str = "",
    host: str = "127.0.0.1",
    limits: ServerLimits = LIMITS,
    documents: DocumentStore | None = None,
) -> GuardedApp:
    """An ASGI application that answers through `tandem`, which stays the caller's to close.

    key: an API key that requests must carry; empty: none, and only names of this machine are served. host: the address
    at which the server listens. documents: of the device, where its site runs in this process.
    """
    # FastAPI's own pages would load scripts from elsewhere, and telemetry tell names of files and texts in errors.
    quiet = dict[str, Any](openapi_url=None, docs_url=None, redoc_url=None)
    if "telemetry" in signature(FastAPI).parameters:  # of later versions
        quiet["telemetry"] = {"tracing": False, "logs": False}
    app = FastAPI(**quiet)
    app.state.service = service = Service(tandem, limits, documents)
    for name in plugins.names("route"):
        app.include_router(plugins.find("route", name))
    app.include_router(router)  # last, since it refuses whatever it does not know
    for kind in (ApiError, HTTPException, Exception):
        app.add_exception_handler(kind, on_error)
    folder = files("tandem.plugins.server") / "page"
    app.mount("/", _PageFiles(directory=str(folder), html=True), name="page")
    return GuardedApp(app, Guard(key, host, tandem.config.http.allowed_hosts), service.metrics)


HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class _PageFiles(StaticFiles):
    """The folder `page`, whose index.html is the page, with headers that keep other sites out."""

    def file_response(self, *args: Any, **options: Any) -> Response:
        response = super().file_response(*args, **options)
        response.headers.update(HEADERS)
        return response


def _home(state: dict[str, Any], config: Config) -> str:
    """The party that answers here: the first that can be reached."""
    reachable = (actor["party"] for actor in state["actors"] if actor["name"].endswith(QUEUE))
    return next(reachable, config.parties[0])


def _party(party: str, state: dict[str, Any]) -> dict[str, Any]:
    described = state["parties"].get(party, {})
    return {
        "name": party,
        "is_connected": _is_connected(party, state),
        "can_answer_alone": any(actor["party"] == party for actor in state["actors"]),  # not over a join link
        "toy": TOYS.get(described.get("model", "")),  # what it is; None: no toy, or not known
        **{name: described.get(name) for name in SHOWN_OF_PARTY},
    }


def _is_connected(party: str, state: dict[str, Any]) -> bool:
    """Whether its actors run here or in the cluster, or its site has a connection to here."""
    if party in state.get("connected", ()):
        return True
    own = [actor["state"] for actor in state["actors"] if actor["party"] == party]
    return bool(own) and all(state == "alive" for state in own)
