"""Asks the bundled questions, has the attacker guess what the device's notes say, and counts.

Timing has no model to compare with. There the attacker knows the facts of runs with other notes, and takes that of the
nearest run on the same domain.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from tandem.actors.tally import listening_queue
from tandem.client.tandem import Tandem
from tandem.codecs import codec_of
from tandem.config.schema import Config
from tandem.corpora import model_path
from tandem.engine.engine import Engine
from tandem.retrieval.build import build_index
from tandem.retrieval.embedding import Embedder, TextEmbedder
from tandem.topology import Party
from tandem_lab.curious.attacker import Attacker, guess
from tandem_lab.curious.imagined import Imagination
from tandem_lab.curious.transcripts import Recorder, Transcript, read_transcript
from tandem_lab.quality.statistics import wilson
from tandem_lab.training.bundle import bundled_world
from tandem_lab.training.synthetic import Note, Question

NUM_KINDS = 8
SIGNALS = ("whole", "before", "votes", "ids", "weights", "sizes", "timing")
"""Columns of the table."""


@dataclass(frozen=True, slots=True)
class Case:
    """One way of asking."""

    name: str
    options: Mapping[str, Any]  # of `Tandem.query`
    codec: str = "auto"
    privacy: float = 0.0  # of the device


def _dual(placement: str, codec: str, temperature: float = 1.0) -> Case:
    what = "race lists" if codec == "auto" else codec
    name = f"dual, {placement}, {what}" + (", temperature 0" if temperature == 0 else "")
    options = {"placement": placement, "temperature": temperature, "draft_rule": "coupled"}
    return Case(name, options, codec)


def _lottery(placement: str) -> Case:
    options = {"placement": placement, "temperature": 1.0, "draft_rule": "lottery"}
    return Case(f"dual, {placement}, lottery", options)


def _algorithm1(placement: str, codec: str) -> Case:
    options = {"placement": placement, "temperature": 1.0, "draft_rule": "algorithm1"}
    return Case(f"dual, {placement}, Algorithm 1, {codec}", options, codec)


def _speculative(has_notes: bool, rule: str, codec: str) -> Case:
    """The device proposes every token: where the cloud continues alone, less crosses, as the timing has it."""
    options: dict[str, Any] = {
        "mode": "speculative",
        "draft_rule": rule,
        "temperature": 1.0,
        "pacing": "stop_and_wait",
    }
    documents = {} if has_notes else {"num_documents": {"device": 0}}
    what = "ids alone" if rule == "coupled" else codec
    drafter = "with notes" if has_notes else "without"
    return Case(f"speculative, device {drafter}, {what}", options | documents, codec)


def _bounded(case: Case, bound: float) -> Case:
    """The same with `device.privacy`."""
    return replace(case, name=f"{case.name}, c = {bound:g}", privacy=bound)


BOUNDS = (8.0, 2.0, 0.5)
ADDRESSES = {
    "lattice": "lattice",
    "k_sqs": "k_sqs",
    "c_sqs": "c_sqs",
}
"""Of the codecs of papers."""
CASES: tuple[Case, ...] = (
    *(_dual(placement, "auto", 0.0) for placement in ("mirror", "device")),
    *(_dual(placement, "auto") for placement in ("mirror", "device", "cloud", "greedy")),
    *map(_lottery, ("mirror", "device")),
    *(_dual("mirror", codec) for codec in ("top_p", "top_k", "lattice")),
    _algorithm1("cloud", "top_p"),
    *(_speculative(has_notes, "coupled", "auto") for has_notes in (True, False)),
    *(_speculative(True, "rejection", codec) for codec in ("k_sqs", "c_sqs", "lattice")),
    _speculative(False, "rejection", "k_sqs"),
    Case("solo, device", {"only": "device", "temperature": 1.0}),
    *(_bounded(_dual("mirror", "auto"), bound) for bound in BOUNDS),
    *(_bounded(_lottery("mirror"), bound) for bound in BOUNDS),
    *(_bounded(_speculative(True, "coupled", "auto"), bound) for bound in BOUNDS),
)


@dataclass(frozen=True, slots=True)
class Trial:
    """One answer, and the candidate that each signal points to; None where nothing of the sort was received."""

    case: str
    deal: str
    domain: str
    fact: int  # place among the kinds of the domain
    other_fact: int  # of the same question in another deal, drawn independently
    guesses: dict[str, int | None]
    timing: tuple[float, ...]  # empty where nothing was received
    num_frames: int
    num_bytes: int


def run_trials(
    cases: Sequence[Case], num_deals: int, num_questions: int, folder: Path, seed: int
) -> Iterator[Trial]:
    """Every case with every question, in each of several deals of the facts; timing is left to `guess_by_timing`."""
    embedder = Embedder.load("offline", num_threads=1)
    imagination = Imagination(Engine.load(str(model_path("bundled")), num_threads=1), embedder, _titles())
    for number in range(num_deals):
        name = f"{seed}.{number}"
        dealt = deal(Random(name))
        others = {each.question: each for each in deal(Random(f"{name} control")).asked}
        index = dealt.write_index(folder / str(number), embedder)
        asked = dealt.sample(Random(f"{name} questions"), num_questions)
        for codec, privacy in dict.fromkeys((case.codec, case.privacy) for case in cases):
            settings = [f"codec.name={ADDRESSES.get(codec, codec)}", f"device.privacy={privacy}"]
            config = Config.load(None, [*settings, f"device.index={index}", "device.kv_store=off"])
            attacker = Attacker(imagination, codec_of(config.codec), privacy)
            with _opened(config) as (tandem, recorder):
                own = [case for case in cases if (case.codec, case.privacy) == (codec, privacy)]
                for (place, each), case in product(enumerate(asked), own):
                    transcript = _ask(tandem, recorder, case, each, seed=1000 * number + place)
                    lot = Random(f"{name} {place}")
                    yield _trial(case, name, each, others[each.question], transcript, attacker, lot)


def guess_by_timing(trials: Sequence[Trial], random: Random) -> list[Trial]:
    """The fact of the nearest run of the same case and domain with other notes; by lot where there is none."""
    return [
        replace(trial, guesses=trial.guesses | {"timing": _nearest(trial, trials, random)})
        for trial in trials
    ]


def success(trials: Sequence[Trial], signal: str) -> dict[str, Any] | None:
    """Share of right guesses and its Wilson interval, and that of the control; None where nothing was received.

    The control scores each guess by the fact of the same question in another deal, which it cannot know.
    """
    guessed = [(trial, trial.guesses[signal]) for trial in trials if trial.guesses[signal] is not None]
    if not guessed:
        return None
    right = sum(given == trial.fact for trial, given in guessed)
    shuffled = sum(given == trial.other_fact for trial, given in guessed)
    return {
        "right": right,
        "of": len(guessed),
        "share": right / len(guessed),
        "interval": wilson(right, len(guessed)),
        "shuffled": shuffled,
    }


def _trial(
    case: Case,
    name: str,
    each: Asked,
    other: Asked,
    transcript: Transcript,
    attacker: Attacker,
    random: Random,
) -> Trial:
    question, last = each.question, attacker.stated_at(each.question, transcript)
    scores = {
        "whole": attacker.whole(question, transcript),
        "before": attacker.before(question, transcript),
        "votes": attacker.votes(question, transcript, last),
        "ids": attacker.ids(question, transcript, last),
        "weights": attacker.weights(question, transcript),
        "sizes": attacker.sizes(question, transcript),
        "note": attacker.read(question, each.note.text),
    }
    return Trial(
        case=case.name,
        deal=name,
        domain=each.note.domain.plural,
        fact=each.fact,
        other_fact=other.fact,
        guesses={name: None if found is None else guess(found, random) for name, found in scores.items()},
        timing=_timing(transcript),
        num_frames=transcript.num_frames,
        num_bytes=transcript.num_bytes,
    )


def _timing(transcript: Transcript) -> tuple[float, ...]:
    """How many drafts, in how long, how long one took, and how long one was waited for."""
    drafts = transcript.drafts
    if len(drafts) < 2:
        return ()
    gaps = np.diff([draft.came_s for draft in drafts])
    decode_us = [draft.decode_us for draft in drafts]
    return (
        len(drafts),
        float(gaps.sum()),
        float(np.median(decode_us)),
        float(gaps.max()),
        float(np.median(gaps)),
    )


def _nearest(trial: Trial, trials: Sequence[Trial], random: Random) -> int | None:
    if not trial.timing:
        return None
    known = [each for each in trials if each.case == trial.case and each.deal != trial.deal and each.timing]
    spread = np.std([each.timing for each in known], axis=0) if known else 1.0
    similar = [each for each in known if each.domain == trial.domain]
    if not similar:
        return random.randrange(NUM_KINDS)
    away = [np.abs((np.subtract(each.timing, trial.timing)) / (spread + 1e-12)).sum() for each in similar]
    return similar[int(np.argmin(away))].fact


@contextlib.contextmanager
def _opened(config: Config) -> Iterator[tuple[Tandem, Recorder]]:
    """Both parties in this process, and everything that leaves the device."""
    recorder = Recorder()
    classes: Any = {"draft_queue": listening_queue(Party.DEVICE, recorder.add)}
    with Tandem.launch(config, runtime="inline", actor_classes=classes) as tandem:
        yield tandem, recorder


def _ask(tandem: Tandem, recorder: Recorder, case: Case, each: Asked, seed: int) -> Transcript:
    recorder.take()
    answer = tandem.query(each.question.text, seed=seed, **case.options)
    return read_transcript(recorder.take(), tuple(token.token for token in answer.tokens))


def _titles() -> dict[tuple[str, str], str]:
    pages = bundled_world().pages
    return {(page.domain.plural, page.kind): page.title for page in pages if page.domain and page.kind}


# ---- Facts that are dealt anew --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Asked:
    """A bundled question, and the note that holds its private fact: which of the domain's kinds a person likes."""

    question: Question
    note: Note

    @property
    def fact(self) -> int:
        """Which of the domain's kinds; each is as likely as the others."""
        return self.note.domain.kinds.index(self.note.kind)


@dataclass(frozen=True, slots=True)
class Deal:
    """The device's notes, and every bundled question with the one that matters."""

    notes: tuple[Note, ...]
    asked: tuple[Asked, ...]

    def sample(self, random: Random, num_questions: int) -> list[Asked]:
        """Questions about different notes, at most as many as there are, so that no fact counts twice."""
        shuffled = random.sample(self.asked, len(self.asked))
        return list({(each.note.name, each.note.domain): each for each in shuffled}.values())[:num_questions]

    def write_index(self, folder: Path, embedder: TextEmbedder) -> Path:
        """The device's index of these notes."""
        (corpus := folder / "notes").mkdir(parents=True)
        for number, note in enumerate(self.notes):
            (corpus / f"{number:02}.md").write_text(note.text + "\n", "utf-8")
        build_index(corpus, folder / "index", embedder)
        return folder / "index"


def deal(random: Random) -> Deal:
    """The bundled notes, each with a kind drawn evenly from those of its domain."""
    world = bundled_world()
    notes = {
        (note.name, note.domain): _with_kind(note, random.choice(note.domain.kinds)) for note in world.notes
    }
    asked = [Asked(question, notes[question.name, question.domain]) for question in world.questions]
    return Deal(tuple(notes.values()), tuple(asked))


def _with_kind(note: Note, kind: str) -> Note:
    things = rf"(?= (?:{note.domain.plural}|{note.domain.noun})\b)"
    return replace(note, kind=kind, text=re.sub(rf"\b{note.kind}{things}", kind, note.text))
