"""Errors in OpenAI's form: {"error": {"message", "type", "param", "code"}}, with the value and the remedy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from math import ceil
from types import MappingProxyType
from typing import Any

from tandem.config.checks import SettingError
from tandem.errors import Code, TandemError, did_you_mean

INVALID, SERVER = "invalid_request_error", "server_error"
RESPONSES: Mapping[Code, tuple[int, str]] = {
    Code.INVALID: (400, "invalid_value"),
    Code.TOO_LONG: (400, "context_length_exceeded"),
    Code.OVER_LIMIT: (400, "invalid_value"),
    Code.BUSY: (429, "rate_limit_exceeded"),
    Code.TIMEOUT: (504, "timeout"),
}
"""Status and OpenAI's code of each kind of failure that is no failure of the server."""
OWN_WORDS = frozenset({"max_new_tokens", "num_logprobs"})
"""Options that are words of Tandem alone, so that in a sentence they mean nothing else."""
NO_NAMES: Mapping[str, str] = MappingProxyType({})


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
        """The body of the response. An option's name is the client's: half a surrogate pair is shown as its escape."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param and self.param.encode("utf-8", "backslashreplace").decode(),
                "code": self.code,
            }
        }


def bad_request(message: str, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """Status 400. param: the option that is wrong, as the request names it."""
    return ApiError(400, message, param=param, code=code)


def unsupported(param: str, message: str) -> ApiError:
    """An option, or a value of one, that this server does not have."""
    return bad_request(message, param, "unsupported_parameter")


def unknown(name: str, known: Iterable[str]) -> ApiError:
    """An option that there is none of. known: those that there are."""
    return bad_request(
        f"There is no option {name!r:.60}; {did_you_mean(name, sorted(known))}", name, "unknown_parameter"
    )


def busy(message: str, retry_after_s: int) -> ApiError:
    """Status 429. retry_after_s: when to try again."""
    return ApiError(429, message, code="rate_limit_exceeded", headers={"Retry-After": str(retry_after_s)})


def refusal(error: TandemError, names: Mapping[str, str] = NO_NAMES) -> ApiError:
    """Of a request from which no query can be made. names: what the request calls options, if something else."""
    response = failure(error, names)
    return response if response.status < 500 else bad_request(response.message, response.param)


def failure(error: TandemError, names: Mapping[str, str] = NO_NAMES) -> ApiError:
    """Of a query that the parties could not answer. names: as in `refusal`."""
    status, code = RESPONSES.get(error.code, (500, "query_failed"))
    param = names.get(error.option, error.option) if error.option else None
    headers = {"Retry-After": str(ceil(error.retry_after_s or 1))} if error.code is Code.BUSY else {}
    return ApiError(status, _in_words_of_request(error, names), param=param, code=code, headers=headers)


def _in_words_of_request(error: TandemError, names: Mapping[str, str]) -> str:
    """A client of HTTP has options, no settings, and may call them by other names."""
    message = str(error)
    if isinstance(error, SettingError) and error.problem:
        message = f"The option {error.name} {error.problem}"
    for option, name in names.items():
        if option in OWN_WORDS:
            message = message.replace(option, name)
    return message
