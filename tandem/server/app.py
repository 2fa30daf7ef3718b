"""The application: routes, errors, and the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, FastAPI
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from tandem.server import documents as documents_routes
from tandem.server import openai_api, typed_events
from tandem.server.access import Guard
from tandem.server.document_store import DocumentStore
from tandem.server.errors import ApiError
from tandem.server.frame import Frame, on_api_error, on_http_error
from tandem.server.page_files import PageFiles
from tandem.server.service import Service

if TYPE_CHECKING:
    from tandem.client import Tandem

router = APIRouter()


@router.get("/health")
async def health() -> dict[str, str]:
    """Whether the server takes requests."""
    return {"status": "ok"}


def create_app(
    tandem: Tandem, *, key: str = "", host: str = "127.0.0.1", documents: DocumentStore | None = None
) -> ASGIApp:
    """An ASGI application that answers through `tandem`, which stays the caller's to close.

    key: an API key that requests must carry; empty: none, and only names of this machine are served. host: the address
    at which the server listens. documents: of the device, where its site runs in this process.
    """
    app = FastAPI(
        openapi_url=None, docs_url=None, redoc_url=None
    )  # their pages would load scripts from elsewhere
    app.state.service = Service(tandem, documents)
    for part in (router, openai_api.router, typed_events.router, documents_routes.router):
        app.include_router(part)
    app.add_exception_handler(ApiError, on_api_error)
    app.add_exception_handler(HTTPException, on_http_error)
    app.mount("/", PageFiles(), name="page")
    return Frame(app, Guard(key, host))
