"""Measure a reader on held-out names and titles: does it copy what its document says, is it flat where that is silent?

Teacher-forced, one pass per case; seeded, so that two readers see the same samples. Knows nothing of training.
"""

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer

from tandem_lab.training.batches import Row, encode_row
from tandem_lab.training.samples import Case, draw_sample

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM


Laws = npt.NDArray[np.float32]  # [length, vocab]: the law that follows each position of a row


@dataclass(frozen=True, slots=True)
class Reading:
    """Held-out measurements, each a mean over samples in [0, 1]."""

    kind_copied: float  # note on the person, half of them on a second one too: the kind is the argmax
    title_copied: float  # page of the answer's kind: every token of the title is the argmax
    title_probability: float  # the same page: probability of the title's first token
    kind_peak_other_person: float  # note on somebody else: largest probability at the kind (flat: 0.125)
    kind_peak_page: float  # page of any kind of the domain: the same
    title_peak_wrong_page: (
        float  # page of another kind: largest probability at the title's first token (flat: 0.01)
    )
    title_peak_note: float  # own note: the same
    num_samples: int


def measure(model: "LlamaForCausalLM", tokenizer: Tokenizer, num_samples: int = 96, seed: int = 7) -> Reading:
    """All measurements, over `num_samples` held-out samples a case with up to three sentences of filler."""
    rng = Random(seed)
    own = _laws(model, tokenizer, rng, "own_note", num_samples)
    right = _laws(model, tokenizer, rng, "right_page", num_samples)
    wrong = _laws(model, tokenizer, rng, "wrong_page", num_samples)
    return Reading(
        kind_copied=_mean([_is_copied(distributions, row, row.kind) for row, distributions in own]),
        title_copied=_mean([_is_copied(distributions, row, row.title) for row, distributions in right]),
        title_probability=_mean(
            [distributions[row.title.start - 1, row.ids[row.title.start]] for row, distributions in right]
        ),
        kind_peak_other_person=_mean(
            [
                distributions[row.kind.start - 1].max()
                for row, distributions in _laws(model, tokenizer, rng, "other_person", num_samples)
            ]
        ),
        kind_peak_page=_mean([distributions[row.kind.start - 1].max() for row, distributions in wrong]),
        title_peak_wrong_page=_mean(
            [distributions[row.title.start - 1].max() for row, distributions in wrong]
        ),
        title_peak_note=_mean([distributions[row.title.start - 1].max() for row, distributions in own]),
        num_samples=num_samples,
    )


@torch.inference_mode()
def _laws(
    model: "LlamaForCausalLM", tokenizer: Tokenizer, rng: Random, case: Case, num_samples: int
) -> list[tuple[Row, Laws]]:
    """Rows with their laws [length, vocab], teacher-forced, for `num_samples` held-out samples of one case."""
    rows = [encode_row(tokenizer, draw_sample(rng, "heldout", 3, case=case)) for _ in range(num_samples)]
    ids = torch.zeros(len(rows), max(len(row.ids) for row in rows), dtype=torch.long)
    for r, row in enumerate(rows):
        ids[r, : len(row.ids)] = torch.tensor(row.ids)
    distributions = model(input_ids=ids, use_cache=False).logits.softmax(-1).numpy()
    return list(zip(rows, distributions, strict=True))


def _is_copied(distributions: Laws, row: Row, part: slice) -> float:
    return float(all(distributions[i - 1].argmax() == row.ids[i] for i in range(part.start, part.stop)))


def _mean(values: list[float]) -> float:
    return float(np.mean(values))
