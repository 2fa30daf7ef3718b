"""What a query of another party's user may ask of this one."""

from __future__ import annotations

from typing import Protocol

from tandem.errors import Code, ConfigError, ProtocolError
from tandem.modes.proposing import MAX_PROPOSAL
from tandem.modes.spec import SessionSpec
from tandem.protocol.logprobs import MAX_TOP_LOGPROBS
from tandem.topology import Party

MAX_WINDOW = 1024
"""Drafts past the last committed token that a device may ask a cloud to keep."""


class QueryLimits(Protocol):
    """Limits of one query, as the settings have them."""

    @property
    def max_answer_tokens(self) -> int:
        """Length of its answer."""

    @property
    def max_documents(self) -> int:
        """Documents that the cloud retrieves for it."""

    @property
    def max_question_bytes(self) -> int:
        """Of the question and the turns before it, in UTF-8."""


def check_spec(spec: SessionSpec, limits: QueryLimits) -> None:
    """Raise ProtocolError, one sentence with value and limit, if a query asks for more than a cloud gives."""
    texts = [spec.query, spec.condensed, *(message.content for message in spec.history), *spec.sampling.stop]
    num_bytes = "the length of question, history and stop texts in bytes"
    filter_bytes = "the length of the cloud's filter in bytes"
    asked: tuple[tuple[str | None, str, int, int], ...] = (
        ("max_new_tokens", "max_new_tokens", spec.sampling.max_new_tokens, limits.max_answer_tokens),
        (
            "num_documents",
            "num_documents of the cloud",
            spec.num_documents(Party.CLOUD),
            limits.max_documents,
        ),
        ("question", num_bytes, _num_bytes(texts), limits.max_question_bytes),
        ("cloud_filter", filter_bytes, _num_bytes([spec.cloud_filter]), limits.max_question_bytes),
        (None, "the number of tokens committed before", len(spec.committed), limits.max_answer_tokens),
        ("max_window", "max_window", spec.max_window, MAX_WINDOW),
        ("max_proposal", "max_proposal", spec.max_proposal, MAX_PROPOSAL),
        ("num_logprobs", "num_logprobs", spec.num_logprobs or 0, MAX_TOP_LOGPROBS),
        (None, "the number of parties", _num_parties(spec), 2),
    )
    for option, what, value, most in asked:
        if value > most:
            raise ProtocolError(
                f"This cloud allows at most {most} for {what} (got {value}); ask for less.",
                code=Code.OVER_LIMIT,
                option=option,
            )


def _num_parties(spec: SessionSpec) -> int:
    try:
        return len(spec.parties)
    except ConfigError:  # no mode allows these parties
        raise ProtocolError(
            "This query asks for parties or a mode that cannot be; install the same version of tandem-rag everywhere.",
            option="mode",
        ) from None


def _num_bytes(texts: list[str]) -> int:
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
