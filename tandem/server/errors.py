"""Errors in OpenAI's form: {"error": {"message", "type", "param", "code"}}, with the value and the remedy."""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from tandem.errors import TandemError

INVALID, SERVER = "invalid_request_error", "server_error"
TOO_LONG = re.compile(r"do(es)? not fit the model's context|travels as at most \d+ bytes")
"""In the sentence of a query that no model can take."""
BUSY = re.compile(r" is busy: | queries open at the cloud, as many as it may")
"""In the sentence of a party that takes no further query now."""
UNFIT = re.compile(r"^A filter must name metadata ")
"""In the sentence of a query that only its client can correct."""
LATE = re.compile(r"^An answer must be complete within ")
"""In the sentence of a query that its time limit has ended."""


class ApiError(Exception):
    """A request that is refused, or whose answer failed."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """status: of HTTP. message: one sentence for the client; it may quote the request, so it is not logged."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @property
    def kind(self) -> str:
        """OpenAI's `type` of the error."""
        kinds = {
            HTTPStatus.UNAUTHORIZED: "authentication_error",
            HTTPStatus.FORBIDDEN: "permission_error",
            HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
        }
        return kinds.get(HTTPStatus(self.status), INVALID if self.status < 500 else SERVER)

    def as_dict(self) -> dict[str, Any]:
        """The body of the response."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }


def bad_request(message: str, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """Status 400. param: the option that is wrong, as the request names it."""
    return ApiError(400, message, param=param, code=code)


def unsupported(param: str, message: str) -> ApiError:
    """An option, or a value of one, that this server does not have."""
    return bad_request(message, param, "unsupported_parameter")


def busy(message: str, retry_after_s: int) -> ApiError:
    """Status 429. retry_after_s: when to try again."""
    return ApiError(429, message, code="rate_limit_exceeded", headers={"Retry-After": str(retry_after_s)})


def refusal(error: TandemError, names: Mapping[str, str]) -> ApiError:
    """Of a request from which no query can be made.

    names: of its options, one of which may be the cause, as the request calls them.
    """
    message = str(error)
    if TOO_LONG.search(message):
        return bad_request(message, "messages", "context_length_exceeded")
    return bad_request(
        message, next((name for option, name in names.items() if _is_named(option, message)), None)
    )


def failure(error: TandemError) -> ApiError:
    """Of a query that the parties could not answer."""
    message = str(error)
    if TOO_LONG.search(message):
        return bad_request(message, "messages", "context_length_exceeded")
    if BUSY.search(message):
        return busy(message, 1)
    if UNFIT.search(message):
        return bad_request(message)
    if LATE.search(message):
        return ApiError(504, message, code="timeout")
    return ApiError(500, message, code="query_failed")


def _is_named(option: str, message: str) -> bool:
    return re.search(rf"\b{re.escape(option)}\b", message) is not None
