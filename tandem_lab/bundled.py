"""The bundled documents and their questions, which the bundled models answer."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tandem.corpora import BUNDLED

DEVICE_CORPUS = BUNDLED / "device"
CLOUD_CORPUS = BUNDLED / "cloud"
QUESTIONS = BUNDLED / "questions.jsonl"


@dataclass(frozen=True, slots=True)
class BundledQuestion:
    """One line of QUESTIONS: what to ask and the one exact answer."""

    question: str
    answer: str


def read_bundled_questions() -> list[BundledQuestion]:
    """The bundled questions, the one of the documentation first."""
    return [BundledQuestion(**json.loads(line)) for line in QUESTIONS.read_text("utf-8").splitlines()]
