"""Errors in OpenAI's form: {"error": {"message", "type", "param", "code"}}, with the value and the remedy."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

from tandem.errors import TandemError, did_you_mean

INVALID, SERVER = "invalid_request_error", "server_error"
TOO_LONG = re.compile(r"do(es)? not fit the model's context|travels as at most \d+ bytes")
"""In the sentence of a query that no model can take."""
BUSY = re.compile(r" is busy: .*; retry after (\d+) s| queries open at the cloud, as many as it may")
"""In the sentence of a party that takes no further query now; the group: when it may."""
OVER = re.compile(r"This cloud allows at most \d+ for ")
"""In the sentence of a query that asks for more than a cloud gives its devices."""
UNFIT = re.compile(r"^(?:The (\w+) gave the query up: )?A filter must name metadata ")
"""The sentence of a query that only its client can correct; the group: whose filter it is, if not the home's."""
LATE = re.compile(r"^An answer must be complete within ")
"""In the sentence of a query that its time limit has ended."""
NO_PARTY = re.compile(r"^A party is .*, not ")
"""In the sentence about an option that names a party which does not exist."""
SETTING = re.compile(r"^The setting (sampling|decoding|link)\.")
"""How a sentence about a setting begins that is an option of queries, too."""
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


def refusal(error: TandemError, options: Mapping[str, Any], names: Mapping[str, str]) -> ApiError:
    """Of a request from which no query can be made.

    options: of the query, by their own names, one of which may be the cause. names: what the request calls them, if
    something else.
    """
    message = str(error)
    if TOO_LONG.search(message):
        return _too_long(message, names)
    cause = next((name for name in ("question", *options) if _is_named(name, message)), None)
    if cause is None and NO_PARTY.search(message):
        cause = "only" if repr(options.get("only")) in message else "num_documents"
    return bad_request(_in_words_of_request(message, names), names.get(cause, cause) if cause else None)


def failure(error: TandemError, names: Mapping[str, str] = NO_NAMES) -> ApiError:
    """Of a query that the parties could not answer. names: as in `refusal`."""
    message = str(error)
    if TOO_LONG.search(message):
        return _too_long(message, names)
    if full := BUSY.search(message):
        return busy(message, int(full[1] or 1))
    if OVER.search(message):
        return bad_request(_in_words_of_request(message, names))
    if unfit := UNFIT.search(message):
        return bad_request(message, f"{unfit[1].lower()}_filter" if unfit[1] else "device_filter")
    if LATE.search(message):
        return ApiError(504, message, code="timeout")
    return ApiError(500, message, code="query_failed")


def _too_long(message: str, names: Mapping[str, str]) -> ApiError:
    message = _in_words_of_request(message, names)
    return bad_request(message, names.get("question", "question"), "context_length_exceeded")


def _in_words_of_request(message: str, names: Mapping[str, str]) -> str:
    """A client of HTTP has options, no settings, and may call them by other names."""
    message = SETTING.sub("The option ", message)
    for option, name in names.items():
        if name != option and option in OWN_WORDS:
            message = re.sub(rf"\b{option}\b", name, message)
    return message


def _is_named(option: str, message: str) -> bool:
    return re.search(rf"\b{re.escape(option)}\b", message) is not None
