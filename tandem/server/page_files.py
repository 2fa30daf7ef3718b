"""The files of the page, with headers that let it load nothing from elsewhere and run no script but its own."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from starlette.responses import Response
from starlette.staticfiles import StaticFiles

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
        super().__init__(directory=str(files("tandem.server") / "page"), html=True)

    def file_response(self, *args: Any, **options: Any) -> Response:
        """A file, or that the client has it."""
        response = super().file_response(*args, **options)
        response.headers.update(HEADERS)
        return response
