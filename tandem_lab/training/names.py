"""Does a reader tell names apart? `python -m tandem_lab.training.names [FOLDER]`; without a folder the bundled one.

Its distribution at the kind, teacher-forced, beside a note on the person asked about, on somebody else, on both, and
without a note. Ideal: certain where the note tells, even over the domain's eight kinds (0.125) where it does not. Names
are held out; the other one is a stranger or shares a syllable. Seeded. A minute on one thread. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer

from tandem.corpora import WEIGHTS
from tandem_lab.training.batches import prompt_ids
from tandem_lab.training.phrases import DOMAINS, HEADS, NAME_TAILS, Domain
from tandem_lab.training.synthetic import make_note, make_question, split_of

Relation = Literal["stranger", "same_first", "same_last"]
RELATIONS: tuple[Relation, ...] = ("stranger", "same_first", "same_last")
"""What the other name shares with the one asked about: nothing, its first syllable, its last one."""
NUM_OTHERS = 3  # notes on other people in the mixture
MOST_FILLER = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Means over samples, in [0, 1]; by relation where there is another person."""

    own: float  # note on the person: probability of the right kind
    other: dict[Relation, float]  # note on the other alone: probability of the other's kind; even is 0.125
    both: dict[Relation, float]  # note on both: probability of the right kind
    both_other: dict[Relation, float]  # the same: probability of the other's kind
    none: float  # no note: largest probability; even is 0.125
    mixture: (
        float  # share of samples where the right kind is the most probable in an even mixture of the own note
    )
    # and `NUM_OTHERS` on other people, who like other kinds
    num_samples: int


@dataclass(frozen=True, slots=True)
class Trial:
    """A question about `name`, who likes `kind`; `other` likes `other_kind`."""

    name: str
    domain: Domain
    kind: str
    other: str
    other_kind: str


def measure_names(model: Any, tokenizer: Tokenizer, num_samples: int = 96, seed: int = 5) -> Names:
    """All measurements over `num_samples` trials of each relation."""
    rng = Random(seed)
    own, none, mixed = list[float](), list[float](), list[float]()
    other: dict[Relation, float] = {}
    both: dict[Relation, float] = {}
    both_other: dict[Relation, float] = {}
    for relation in RELATIONS:
        trials = [draw_trial(rng, relation) for _ in range(num_samples)]
        beside_own = _kinds(model, tokenizer, rng, trials, ["own"])
        beside_other = _kinds(model, tokenizer, rng, trials, ["other"])
        beside_both = _kinds(model, tokenizer, rng, trials, ["own", "other"])
        own.append(_mean(_of(tokenizer, beside_own, [trial.kind for trial in trials])))
        other[relation] = _mean(_of(tokenizer, beside_other, [trial.other_kind for trial in trials]))
        both[relation] = _mean(_of(tokenizer, beside_both, [trial.kind for trial in trials]))
        both_other[relation] = _mean(_of(tokenizer, beside_both, [trial.other_kind for trial in trials]))
        none.append(_mean(_kinds(model, tokenizer, rng, trials, []).max(-1)))
        # Others of the same relation, each with a kind that is not the right one.
        more = [
            _kinds(model, tokenizer, rng, _with_others(rng, trials, relation), ["other"])
            for _ in range(NUM_OTHERS - 1)
        ]
        law = np.mean([beside_own, beside_other, *more], axis=0)
        right = [_token(tokenizer, trial.kind) for trial in trials]
        mixed.append(_mean(law.argmax(-1) == right))
    return Names(
        own=_mean(own),
        other=other,
        both=both,
        both_other=both_other,
        none=_mean(none),
        mixture=_mean(mixed),
        num_samples=num_samples,
    )


def draw_trial(rng: Random, relation: Relation) -> Trial:
    """Held-out names, two kinds of one domain."""
    domain = rng.choice(DOMAINS)
    kind, other_kind = rng.sample(domain.kinds, 2)
    while True:
        name = rng.choice(heldout_names())
        if others := names_like(name, relation):  # a few syllables have one held-out name only
            return Trial(name, domain, kind, rng.choice(others), other_kind)


@cache
def heldout_names() -> list[str]:
    """Every name that training never shows."""
    names = (head + tail for head in HEADS for tail in NAME_TAILS)
    return [name for name in names if split_of(name) == "heldout"]


def names_like(name: str, relation: Relation) -> list[str]:
    """All other held-out names of the given relation to `name`."""
    wanted = (relation == "same_first", relation == "same_last")
    return [
        other
        for other in heldout_names()
        if (other[:-2] == name[:-2], other[-2:] == name[-2:]) == wanted  # a last syllable is two letters
    ]


def _with_others(rng: Random, trials: Sequence[Trial], relation: Relation) -> list[Trial]:
    return [
        Trial(
            trial.name,
            trial.domain,
            trial.kind,
            rng.choice(names_like(trial.name, relation)),
            rng.choice([kind for kind in trial.domain.kinds if kind != trial.kind]),
        )
        for trial in trials
    ]


@torch.inference_mode()
def _kinds(
    model: Any, tokenizer: Tokenizer, rng: Random, trials: Sequence[Trial], told: Sequence[str]
) -> npt.NDArray[np.float64]:
    """Distributions at the kind [trials, vocab]. told: whose likes the note tells, "own" and "other"; none: no note."""
    rows = []
    for trial in trials:
        likes = {"own": (trial.name, trial.kind), "other": (trial.other, trial.other_kind)}
        document = None
        if told:
            (name, kind), *others = [likes[who] for who in told]
            num_filler = rng.randint(0, MOST_FILLER)
            document = make_note(rng, name, trial.domain, kind, num_filler, others=others).text
        question = make_question(rng, trial.name, trial.domain, trial.kind, "").text
        before = tokenizer.encode(f" {trial.name} likes", add_special_tokens=False).ids
        rows.append([*prompt_ids(tokenizer, document, question), *before])
    ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = torch.tensor(row)
    logits = model(input_ids=ids, use_cache=False).logits
    last = logits[torch.arange(len(rows)), torch.tensor([len(row) - 1 for row in rows])]
    return np.asarray(last.double().softmax(-1).numpy())


def _of(
    tokenizer: Tokenizer, distributions: npt.NDArray[np.float64], kinds: Sequence[str]
) -> npt.NDArray[np.float64]:
    """Probability of each trial's kind."""
    return distributions[np.arange(len(kinds)), [_token(tokenizer, kind) for kind in kinds]]


def _token(tokenizer: Tokenizer, kind: str) -> int:
    return int(tokenizer.encode(f" {kind}", add_special_tokens=False).ids[0])


def _mean(values: Any) -> float:
    return round(float(np.mean(values)), 4)


def _main() -> None:
    from transformers import LlamaForCausalLM

    parser = argparse.ArgumentParser(description="Measure whether a reader tells names apart.")
    parser.add_argument("folder", type=Path, nargs="?", default=WEIGHTS)
    parser.add_argument("--samples", type=int, default=96)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = LlamaForCausalLM.from_pretrained(arguments.folder, dtype=torch.float32)
    tokenizer = Tokenizer.from_file(str(arguments.folder / "tokenizer.json"))
    print(json.dumps(asdict(measure_names(model, tokenizer, arguments.samples))))


if __name__ == "__main__":
    _main()
