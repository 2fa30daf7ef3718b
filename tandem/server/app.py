"""The application: routes, errors, and the page."""

from __future__ import annotations

import asyncio
from inspect import signature
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp

from tandem.config.schema import HttpConfig
from tandem.server import documents as documents_routes
from tandem.server import openai_api, typed_events
from tandem.server.access import Guard
from tandem.server.document_store import DocumentStore
from tandem.server.errors import ApiError
from tandem.server.frame import GUIDE, Frame, on_api_error, on_failure, on_http_error
from tandem.server.page_files import PageFiles
from tandem.server.service import Service, service_of
from tandem.server.status import find_peers

if TYPE_CHECKING:
    from tandem.client.tandem import Tandem

NO_TELEMETRY = {"tracing": False, "logs": False}
"""Later versions of FastAPI trace requests by themselves, with URLs that hold names of files, and log messages of
errors, which may quote anything. `tandem.server.tracing` has the spans without text."""

router = APIRouter()


@router.api_route("/health", methods=["GET", "HEAD"])
async def health() -> dict[str, str]:
    """Whether the server takes requests."""
    return {"status": "ok"}


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """What Prometheus reads."""
    service = service_of(request)
    state = await asyncio.to_thread(service.tandem.status)
    peers = find_peers(state, service.tandem.config)
    return Response(service.metrics.render(state, peers), media_type=CONTENT_TYPE_LATEST)


@router.api_route("/v1/{path:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
async def refuse(request: Request, path: str) -> None:
    """Everything else of an interface that this server has in part."""
    raise ApiError(404, f"There is no {request.method} /v1/{path:.100}; see {GUIDE}.", code="not_found")


def create_app(
    tandem: Tandem,
    *,
    key: str = "",
    host: str = "127.0.0.1",
    limits: HttpConfig | None = None,
    documents: DocumentStore | None = None,
) -> ASGIApp:
    """An ASGI application that answers through `tandem`, which stays the caller's to close.

    key: an API key that requests must carry; empty: none, and only names of this machine are served. host: the address
    at which the server listens. limits: None takes `tandem.config.http`. documents: of the device, where its site runs
    in this process.
    """
    quiet: dict[str, Any] = (
        {"telemetry": NO_TELEMETRY} if "telemetry" in signature(FastAPI).parameters else {}
    )
    # FastAPI's own pages would load scripts from elsewhere.
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, **quiet)
    app.state.service = service = Service(tandem, limits or tandem.config.http, documents)
    for part in (openai_api.router, typed_events.router, documents_routes.router, router):
        app.include_router(part)
    app.add_exception_handler(ApiError, on_api_error)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(Exception, on_failure)
    app.mount("/", PageFiles(), name="page")
    return Frame(app, Guard(key, host), service.metrics)
