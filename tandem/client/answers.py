"""A finished answer for other programs: its text piece by piece, why it ended, and what Tandem knows about it."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import to_jsonable_python

from tandem import __version__
from tandem.citations import Span
from tandem.errors import QueryError
from tandem.events import Answer, DoneEvent, Event, Source, collect

FINISH_REASONS = {"eos": "stop", "stop": "stop", "loop": "length", "length": "length"}
"""OpenAI's name for why an answer ended."""
SOURCE_FIELDS = ("party", "id", "title", "score", "page")
"""Fields of a source that are shown; its text is among the typed events."""
SEED_BITS = 53
"""Size of a seed that nobody gave: every reader of JSON can hold such whole numbers."""
LOADED = (
    "weights_fingerprint",
    "vocabulary_fingerprint",
    "template_fingerprint",
    "embedder_fingerprint",
    "scorer_fingerprint",
    "codec",
)
"""Facts of a party on which its answers depend; its documents do not show."""


class Trimmer:
    """Takes the space around an answer off, piece by piece: all pieces together are the text of its `Answer`."""

    def __init__(self) -> None:
        self._has_begun = False
        self._space = ""  # that only more text turns into a part of the answer

    def push(self, text: str) -> str:
        """Take a piece of text; returns what may be shown now."""
        text = self._space + text if self._has_begun else text.lstrip()
        shown = text.rstrip()
        self._space = text[len(shown) :]
        self._has_begun |= bool(shown)
        return shown


def finish_reason(answer: Answer) -> str:
    """OpenAI's name for why an answer ended."""
    return FINISH_REASONS.get(answer.reason, answer.reason)


def require_answer(events: Sequence[Event], seed: int) -> Answer:
    """The answer that the events of one query make up. Raises QueryError where it failed or is incomplete."""
    if not events or not isinstance(events[-1], DoneEvent) or events[-1].reason == "cancelled":
        raise QueryError("The query was cancelled before its answer was complete; ask again.")
    return collect(events, seed)


def describe(answer: Answer, shown: str | None = None) -> dict[str, Any]:
    """Seed, sources, what they said, notes, acceptance, degradation and statistics, as JSON holds them.

    shown: the end of the text, after what the model thought, to which citations refer; None: all of it.
    """
    first = 0 if shown is None else len(answer.text) - len(shown)
    citations = describe_citations(answer.citations, answer.sources)
    return {
        "seed": answer.seed,
        "session": answer.session,
        "sources": [
            {name: value for name, value in to_plain(source).items() if name in SOURCE_FIELDS}
            for source in answer.sources
        ],
        "notes": list(answer.notes),
        "acceptance": _acceptance(answer),
        "citations": [
            cited | {end: cited[end] - first for end in ("start", "end")}
            for cited in citations
            if first <= cited["start"]
        ],
        "support": to_plain(answer.support),
        "steps": [{"party": step.party, "text": step.text} for step in answer.steps],
        "shares": {party: round(share, 4) for party, share in answer.shares.items()},
        "degraded": answer.degraded_reason,
        "statistics": to_plain(answer.statistics),
    }


def describe_citations(spans: Sequence[Span], sources: Sequence[Source]) -> list[dict[str, Any]]:
    """The citations of the home's documents in an answer's text, as JSON holds them. `source` is a place in the list
    of all sources, start and end count characters (Unicode code points) of the text."""
    own = [place for place, source in enumerate(sources) if source.score is not None]
    cited = [(span, own[span.document]) for span in spans if span.document < len(own)]
    return [
        {
            "start": span.start,
            "end": span.end,
            "source": place,
            "id": sources[place].id,
            "title": sources[place].title,
            "page": sources[place].page,
            "share": round(span.share, 4),
        }
        for span, place in cited
    ]


def count_usage(num_prompt_tokens: int, num_tokens: int) -> dict[str, int]:
    """OpenAI's count of tokens. Documents count nowhere: each party reads its own."""
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_tokens,
        "total_tokens": num_prompt_tokens + num_tokens,
    }


def fingerprint(described: Mapping[str, Mapping[str, Any]]) -> str:
    """Equal for parties whose answers are equal, given seed and documents. described: of `Tandem`."""
    loaded = {party: [about.get(name) for name in LOADED] for party, about in described.items()}
    text = json.dumps([__version__, loaded], sort_keys=True)
    return f"fp_{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def new_seed() -> int:
    """A fresh seed for an answer whose seed nobody gave."""
    return secrets.randbits(SEED_BITS)


def to_plain(value: Any) -> Any:
    """A value as JSON holds it, a dataclass as an object: what was not measured (nan) or has no bound (inf) is null."""
    return to_jsonable_python(value, inf_nan_mode="null")


def _acceptance(answer: Answer) -> dict[str, float]:
    """Share of the tokens decided by more than one party that equal a party's draft; empty if there is none."""
    together = [token for token in answer.tokens if not token.is_alone]
    accepted = {
        "device": [token.device_accepted for token in together],
        "cloud": [token.cloud_accepted for token in together],
    }
    return {party: round(sum(flags) / len(flags), 4) for party, flags in accepted.items() if flags}
