"""What a query of another party's user may ask of a cloud."""

from __future__ import annotations

from tandem.codecs.base import MAX_VOCAB
from tandem.errors import Code, ConfigError, ProtocolError, TandemError
from tandem.modes import MAX_SHOWN, SessionSpec
from tandem.profiler.estimates import DecodeLine
from tandem.protocol.services import policy_of
from tandem.topology import PARTIES, Party

MAX_WINDOW = 1024
"""Drafts past the last committed token that a device may ask a cloud to keep."""
MAX_DOCUMENTS = 64
"""Documents that a cloud retrieves for one query."""
MAX_QUESTION_BYTES = 65_536
"""Bytes of a question, the turns before it, its system prompt and stop texts; of the filter for the cloud's documents;
and of a grammar."""
MAX_STOPS = 64
MAX_BITS = 1 << 40
MAX_NAME = 256
"""Characters of the name of a policy."""


def check_spec(spec: SessionSpec, max_answer_tokens: int) -> None:
    """Raise ProtocolError, one sentence with value and limit, if a query asks for more than a cloud gives.

    What a single field may be at all, its own bounds say (`tandem.modes.query`). max_answer_tokens: of one answer.
    """
    sampling, decoding = spec.sampling, spec.decoding
    texts = [*spec.texts, spec.search, spec.system_prompt or "", *sampling.stop]
    num_bytes = "the length of question, history, system prompt and stop texts in bytes"
    filter_bytes = "the length of the cloud's filter in bytes"
    asked: tuple[tuple[str | None, str, int, int], ...] = (
        ("max_new_tokens", "max_new_tokens", sampling.max_new_tokens, max_answer_tokens),
        ("num_documents", "num_documents of the cloud", spec.num_documents(Party.CLOUD), MAX_DOCUMENTS),
        ("question", num_bytes, _num_bytes(texts), MAX_QUESTION_BYTES),
        ("cloud_filter", filter_bytes, _num_bytes([spec.cloud_filter]), MAX_QUESTION_BYTES),
        ("grammar", "the length of the grammar in bytes", _num_bytes([spec.grammar]), MAX_QUESTION_BYTES),
        ("device_filter", "the length of the device's filter, which it keeps,", len(spec.device_filter), 0),
        ("stop", "the number of stop texts", len(sampling.stop), MAX_STOPS),
        ("top_k", "top_k", sampling.top_k, MAX_VOCAB),
        (None, "the highest token id", max(spec.eos_token_ids, default=0), spec.vocab_size - 1),
        ("max_window", "max_window", decoding.max_window, MAX_WINDOW),
        ("uplink_budget_bits", "uplink_budget_bits", decoding.uplink_budget_bits, MAX_BITS),
        ("placement", "the length of the placement's name", len(decoding.placement), MAX_NAME),
        ("length_policy", "the length of the length policy's name", len(decoding.length_policy), MAX_NAME),
        ("mode", "the number of workers", max(map(len, (spec.workers, spec.weights, decoding.home))), 0),
        (None, "the number of parties", _num_parties(spec), 2),
    )
    for option, what, value, most in asked:
        if value > most:
            shown = value if value < MAX_SHOWN else f"more than {MAX_SHOWN:g}"
            raise ProtocolError(
                f"This cloud allows at most {most} for {what} (got {shown}); ask for less.",
                code=Code.OVER_LIMIT,
                option=option,
            )
    _check_made(spec)


def _check_made(spec: SessionSpec) -> None:
    """Check what actors make of a query as they begin: a policy, which must be loaded here, and offline profiles."""
    try:
        if spec.rules.is_placed:
            policy_of(spec)
    except ConfigError as error:
        raise ProtocolError(str(error), code=Code.INVALID, option="placement") from None
    try:
        for party in PARTIES:
            if line := spec.decode_line(party):
                DecodeLine.from_tuple(line)
    except TandemError as error:
        raise ProtocolError(str(error), code=Code.INVALID) from None


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
