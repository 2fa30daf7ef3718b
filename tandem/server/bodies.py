"""The body of a request: a JSON object of bounded size."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect, Request

from tandem.server.errors import ApiError, bad_request


async def read_object(request: Request, max_bytes: int) -> dict[str, Any]:
    """The JSON object that a request carries. Raises ApiError."""
    text = await _read(request, max_bytes)
    try:
        body = json.loads(text, parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        raise bad_request("The body is not UTF-8; send JSON.", code="invalid_json") from None
    except json.JSONDecodeError as error:
        raise bad_request(
            f"The body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}; correct it.",
            code="invalid_json",
        ) from None
    except (RecursionError, ValueError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise bad_request(f"The body is not JSON: {reason}; correct it.", code="invalid_json") from None
    if not isinstance(body, dict):
        raise bad_request(
            f"The body must be a JSON object, but it is of type {type(body).__name__}; send an object.",
            code="invalid_json",
        )
    return body


async def _read(request: Request, max_bytes: int) -> bytes:
    parts, size = [], 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > max_bytes:
                raise ApiError(
                    413,
                    f"A request has at most {max_bytes} bytes, this one has more; shorten it, or raise "
                    "http.max_body_bytes.",
                    code="request_too_large",
                )
            parts.append(part)
    except ClientDisconnect:
        raise bad_request("The client left before the body was complete.", code="disconnected") from None
    return b"".join(parts)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")
