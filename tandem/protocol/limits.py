"""What a query of another party's user may ask of this one."""

from __future__ import annotations

from tandem.errors import Code, ConfigError, ProtocolError
from tandem.modes.query import MAX_TOP_LOGPROBS
from tandem.modes.spec import SessionSpec
from tandem.topology import Party

MAX_WINDOW = 1024
"""Drafts past the last committed token that a device may ask a cloud to keep."""
MAX_DOCUMENTS = 64
"""Documents that a cloud retrieves for one query."""
MAX_QUESTION_BYTES = 65_536
"""Of a question, the turns before it and its stop texts; and of the filter for the cloud's documents."""


def check_spec(spec: SessionSpec, max_answer_tokens: int) -> None:
    """Raise ProtocolError, one sentence with value and limit, if a query asks for more than a cloud gives.

    max_answer_tokens: of one answer.
    """
    texts = [spec.query, spec.condensed, *(message.content for message in spec.history), *spec.sampling.stop]
    num_bytes = "the length of question, history and stop texts in bytes"
    filter_bytes = "the length of the cloud's filter in bytes"
    asked: tuple[tuple[str | None, str, int, int], ...] = (
        ("max_new_tokens", "max_new_tokens", spec.sampling.max_new_tokens, max_answer_tokens),
        (
            "num_documents",
            "num_documents of the cloud",
            spec.num_documents(Party.CLOUD),
            MAX_DOCUMENTS,
        ),
        ("question", num_bytes, _num_bytes(texts), MAX_QUESTION_BYTES),
        ("cloud_filter", filter_bytes, _num_bytes([spec.cloud_filter]), MAX_QUESTION_BYTES),
        (None, "the number of tokens committed before", len(spec.committed), max_answer_tokens),
        ("max_window", "max_window", spec.decoding.max_window, MAX_WINDOW),
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
