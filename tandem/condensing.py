"""A question that stands for itself, written from a conversation: what documents are found by.

The home's own model writes it, greedily, as the answer to a query of its own that the home answers alone. It sees the
conversation and no document, and nothing of that query crosses a link. What it wrote goes to all parties with the
question that it belongs to, as `SessionSpec.condensed`.
"""

from __future__ import annotations

import secrets
from dataclasses import replace

from tandem.conversation import ask_to_condense
from tandem.protocol.spec import SessionSpec
from tandem.sampling import SamplingParams

MAX_TOKENS = 48
MAX_CHARS = 300
"""Embedders read the beginning of a text."""


def is_wanted(spec: SessionSpec) -> bool:
    """Whether documents are to be found by a question that is still to be written."""
    has_documents = any(spec.num_documents(party) for party in spec.parties)
    return spec.chat_query == "condensed" and bool(spec.history) and has_documents and not spec.condensed


def make_request(spec: SessionSpec) -> SessionSpec:
    """The query that asks the home of `spec` for the question."""
    return replace(
        spec,
        session=secrets.randbits(32),
        query=ask_to_condense(spec.history, spec.query),
        sampling=SamplingParams(temperature=0.0, max_new_tokens=MAX_TOKENS),
        only=spec.home,
        documents={},
        device_filter="",
        cloud_filter="",
        history=(),
        show_drafts=False,
        num_logprobs=None,
        committed=(),
    )


def read_question(text: str) -> str:
    """The first line that is not empty, as far as it is searched by; empty if there is none."""
    lines = (line.strip() for line in text.splitlines())
    return next((line[:MAX_CHARS] for line in lines if line), "")


def notes(spec: SessionSpec) -> tuple[str, ...]:
    """What is said beside the home's documents: by which question they were found, where one was to be written."""
    if spec.condensed:
        return (f"Documents were found by the question {spec.condensed!r}.",)
    if is_wanted(spec):
        return ("The model wrote no question from the conversation; documents were found by the last one.",)
    return ()
