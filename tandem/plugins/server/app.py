"""The application: routes, Tandem's own interface, errors, and the page."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from functools import cache
from importlib.resources import files
from inspect import signature
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from tandem import __version__, plugins
from tandem.client.answers import new_seed, to_plain
from tandem.client.request import QueryOptions
from tandem.config.schema import Config, placement_of
from tandem.corpora import TOYS, example_questions
from tandem.errors import TandemError
from tandem.events import EVENT_TYPES
from tandem.plugins.server.access import GUIDE, Guard, GuardedApp, on_api_error, on_failure, on_http_error
from tandem.plugins.server.document_store import DocumentStore
from tandem.plugins.server.http import (
    LIMITS,
    ApiError,
    EventStream,
    ServerLimits,
    compact,
    encode_event,
    failure,
    read_object,
    unknown,
)
from tandem.plugins.server.queries import QueryLimit, RunningQuery, Service, service_of

if TYPE_CHECKING:
    from tandem.client.tandem import Tandem

NO_TELEMETRY = {"tracing": False, "logs": False}
"""Later versions of FastAPI trace requests by themselves, with URLs that hold names of files, and log messages of
errors, which may quote anything."""

EVENT_NAMES = {kind: name for name, kind in EVENT_TYPES.items()}
TANDEM_OPTIONS = tuple(name for name in QueryOptions.__annotations__ if name != "sampling")
"""Options of a query that JSON can hold; a file on this machine is nothing for its clients."""

router = APIRouter()


@router.api_route("/health", methods=["GET", "HEAD"])
async def health() -> dict[str, str]:
    """Whether the server takes requests."""
    return {"status": "ok"}


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Metrics as Prometheus reads them."""
    service = service_of(request)
    state = await asyncio.to_thread(service.tandem.status)
    peers = find_peers(state, service.tandem.config)
    return Response(service.metrics.render(state, peers), media_type=CONTENT_TYPE_LATEST)


@router.post("/v1/tandem/events")
async def stream_events(request: Request) -> EventStream:
    """Answer {"question", "history", further options of a query} by its events as they happen."""
    service = service_of(request)
    options = await read_object(request, service.limits.max_body_bytes)
    question = options.pop("question", "")
    for name in options:
        if name not in TANDEM_OPTIONS:
            raise unknown(name, TANDEM_OPTIONS)
    if options.get("seed") is None:
        options["seed"] = new_seed()
    query = service.start(question, options)
    return EventStream(_encoded(query, options["seed"]), query.close, service.limits.send_timeout_s)


@router.get("/v1/tandem/status")
async def status(request: Request) -> dict[str, Any]:
    """Parties, documents, link and open queries."""
    service = service_of(request)
    state = await asyncio.to_thread(service.tandem.status)
    return describe(state, service.tandem.config, service.queries)


@router.get("/v1/tandem/actors")
async def actors(request: Request) -> Any:
    """All that the parties report of themselves, as `tandem status --json` shows it."""
    return to_plain(await asyncio.to_thread(service_of(request).tandem.status))


async def _encoded(query: RunningQuery, seed: int) -> AsyncIterator[bytes]:
    yield encode_event("query", json.dumps({"seed": seed}))
    try:
        async for event in query:
            yield encode_event(EVENT_NAMES[type(event)], compact(to_plain(event)))
    except TandemError as error:
        yield encode_event("error", json.dumps(failure(error).as_dict()))


@router.api_route("/v1/{path:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
async def refuse(request: Request, path: str) -> None:
    """Everything else of an interface that this server has in part."""
    raise ApiError(404, f"There is no {request.method} /v1/{path:.100}; see {GUIDE}.", code="not_found")


# ---- the application ----------------------------------------------------------------------------------------


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
    at which the server listens. documents: of the device, where its site runs
    in this process.
    """
    quiet: dict[str, Any] = (
        {"telemetry": NO_TELEMETRY} if "telemetry" in signature(FastAPI).parameters else {}
    )
    # FastAPI's own pages would load scripts from elsewhere.
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, **quiet)
    app.state.service = service = Service(tandem, limits, documents)
    for name in plugins.names("route"):
        app.include_router(plugins.find("route", name))
    app.include_router(router)  # last, since it refuses whatever it does not know
    app.add_exception_handler(ApiError, on_api_error)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(Exception, on_failure)
    app.mount("/", PageFiles(), name="page")
    return GuardedApp(app, Guard(key, host, tandem.config.http.allowed_hosts), service.metrics)


POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class PageFiles(StaticFiles):
    """The folder `page`, whose index.html is the page."""

    def __init__(self) -> None:
        super().__init__(directory=str(files("tandem.plugins.server") / "page"), html=True)

    def file_response(self, *args: Any, **options: Any) -> Response:
        """A file, or that the client has it."""
        response = super().file_response(*args, **options)
        response.headers.update(HEADERS)
        return response


# ---- the state of the parties, as the page shows it ---------------------------------------------------------


SHOWN_OF_PARTY = ("model", "num_documents", "corpus", "factory", "embedder", "context_length")
COUNTED = ("sent_bytes", "received_bytes", "sent_frames", "received_frames")
QUEUE = "draft_queue"


def describe(state: dict[str, Any], config: Config, queries: QueryLimit) -> dict[str, Any]:
    """state: of `Tandem.status`. The link's bytes are those of the home party's draft queue since it started."""
    home = _home(state, config)
    parties = [_party(party, state) for party in config.parties]
    return {
        "version": __version__,
        "mode": config.decoding.mode,
        "placement": placement_of(config.decoding),
        "home": home,
        "deployment": state["cluster"],
        "parties": parties,
        "examples": _examples(parties),
        "links": [
            link for actor in state["actors"] if actor["name"] == f"{home}/{QUEUE}" for link in _links(actor)
        ],
        "queries": {"num_open": queries.num_open, "max_open": queries.max_queries},
    }


def find_peers(state: dict[str, Any], config: Config) -> dict[str, bool]:
    """Every party but the home one, and whether it is connected. state: of `Tandem.status`."""
    home = _home(state, config)
    return {party: _is_connected(party, state) for party in config.parties if party != home}


def _home(state: dict[str, Any], config: Config) -> str:
    """The party that answers here: the first that can be reached."""
    reachable = [actor["party"] for actor in state["actors"] if actor["name"].endswith(f"/{QUEUE}")]
    return reachable[0] if reachable else config.parties[0]


def _party(party: str, state: dict[str, Any]) -> dict[str, Any]:
    described = state["parties"].get(party, {})
    return {
        "name": party,
        "is_connected": _is_connected(party, state),
        "can_answer_alone": any(actor["party"] == party for actor in state["actors"]),  # not over a join link
        "toy": TOYS.get(described.get("model", "")),  # what it is; None: no toy, or not known
        **{name: described.get(name) for name in SHOWN_OF_PARTY},
    }


def _examples(parties: list[dict[str, Any]]) -> list[str]:
    """Questions to try where the documents of all parties belong together; [] for others, or where one has none."""
    first, *others = {party["corpus"] for party in parties}
    return _read_examples(first) if first and not others else []


_read_examples = cache(example_questions)  # the page asks for the status every few seconds


def _is_connected(party: str, state: dict[str, Any]) -> bool:
    """Whether its actors run here or in the cluster, or its site has a connection to here."""
    if party in state.get("connected", ()):
        return True
    own = [actor["state"] for actor in state["actors"] if actor["party"] == party]
    return bool(own) and all(state == "alive" for state in own)


def _links(actor: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"peer": name.partition("/")[0], **{key: counters[key] for key in COUNTED}}
        for name, counters in actor.get("links", {}).items()
        if name.endswith(f"/{QUEUE}")
    ]
