"""Samples to padded integer arrays: token ids, labels and the position of each part of the answer.

The row layout is the contract with the generation engine: [bos] + tokens(document part) + tokens(query part), then
the answer, which begins with a space, and eos. Rows are padded on the right; under a causal mask padding after the
last token changes nothing before it, so no attention mask is needed. Knows nothing of the model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from tandem.corpora import DOCUMENT_TEMPLATE, QUERY_TEMPLATE
from tandem_lab.training.phrases import DOMAINS, HEADS, TAILS
from tandem_lab.training.samples import Lesson, Sample, draw_roll_call, draw_sample
from tandem_lab.training.tokenizer import BOS_ID, EOS_ID, PAD_ID

_POOL_BATCHES = 16  # batches drawn together and sorted by length, so that little padding is computed


NOT_COUNTED = -1
"""Label of a token that is not to be foretold."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows padded on the right, all [rows, length]; labels[:, i] says what must follow ids[:, i], as in `Row`."""

    ids: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Row:
    """One row as token ids. labels: what is to be foretold in the place of each id. kind, title: slices of ids.

    A label is `NOT_COUNTED`, a token id, or the vocabulary's size + i for row i of `even_targets`.
    """

    ids: list[int]
    labels: list[int]
    kind: slice
    title: slice

    @property
    def start(self) -> int:
        """Where the answer begins."""
        return next(i for i, label in enumerate(self.labels) if label != NOT_COUNTED)


def even_targets(tokenizer: Tokenizer) -> npt.NDArray[np.float32]:
    """Targets where the document does not tell, [10, vocab]: even over each domain's kinds, heads and tails.

    With a kind or title that was drawn as the target instead, evenness would have to be averaged out of noise.
    """
    groups = [*(domain.kinds for domain in DOMAINS), HEADS, [HEADS[0] + tail for tail in TAILS]]
    ids = [
        [tokenizer.encode(f" {word}", add_special_tokens=False).ids[-1] for word in words] for words in groups
    ]
    targets = np.zeros((len(ids), tokenizer.get_vocab_size()), np.float32)
    for target, group in zip(targets, ids, strict=True):
        target[group] = 1 / len(group)
    return targets


def encode_row(tokenizer: Tokenizer, *samples: Sample) -> Row:
    """Token ids of a sample, or of several that share a document: prompt, answers, eos. The answers count.

    The question is that of the first, so whose turn is next does not count; `kind` and `title` are those of the last.
    """
    vocab_size = tokenizer.get_vocab_size()
    ids = prompt_ids(tokenizer, samples[0].document, samples[0].question.text)
    labels = [NOT_COUNTED] * len(ids)
    for number, sample in enumerate(samples):
        asked = sample.question
        text = f" {asked.answer}"
        answer = tokenizer.encode(text, add_special_tokens=False)
        name, kind, title = (
            _token_slice(answer.offsets, text, part, len(ids))
            for part in (asked.name, asked.kind, asked.title)
        )
        ids += answer.ids
        labels += answer.ids
        if number > 0:
            labels[name] = [NOT_COUNTED] * (name.stop - name.start)
        if not sample.is_kind_told:
            labels[kind] = [vocab_size + DOMAINS.index(asked.domain)]
        if not sample.is_title_told:
            labels[title] = [vocab_size + len(DOMAINS), vocab_size + len(DOMAINS) + 1] * 2
    return Row([*ids, EOS_ID], [*labels, EOS_ID], kind, title)


def prompt_ids(tokenizer: Tokenizer, document: str | None, query: str) -> list[int]:
    """[bos] + tokens(document part) + tokens(query part), the parts tokenised separately."""
    ids = [BOS_ID]
    if document is not None:
        ids += tokenizer.encode(DOCUMENT_TEMPLATE.format(document=document), add_special_tokens=False).ids
    return ids + tokenizer.encode(QUERY_TEMPLATE.format(query=query), add_special_tokens=False).ids


def draw_batches(
    rng: Random, tokenizer: Tokenizer, lesson: Lesson, rows_per_batch: int, max_filler: int
) -> list[Batch]:
    """A pool of `_POOL_BATCHES` training batches, rows of like length together, in random order."""
    rows = []
    for _ in range(rows_per_batch * _POOL_BATCHES):
        if rng.random() < lesson.roll_call_share:
            rows.append(encode_row(tokenizer, *draw_roll_call(rng, "train", lesson)))
        else:
            rows.append(encode_row(tokenizer, draw_sample(rng, "train", max_filler, lesson=lesson)))
    rows.sort(key=lambda row: len(row.ids))
    batches = [collate(rows[i : i + rows_per_batch]) for i in range(0, len(rows), rows_per_batch)]
    rng.shuffle(batches)
    return batches


def collate(rows: Sequence[Row]) -> Batch:
    """Pad rows to one length and move labels one to the left."""
    length = max(len(row.ids) for row in rows)
    ids = np.full((len(rows), length), PAD_ID, np.int64)
    labels = np.full((len(rows), length), NOT_COUNTED, np.int64)
    for r, row in enumerate(rows):
        ids[r, : len(row.ids)] = row.ids
        labels[r, : len(row.ids) - 1] = row.labels[1:]
    return Batch(ids, labels)


def _token_slice(offsets: Sequence[tuple[int, int]], text: str, part: str, shift: int) -> slice:
    """Where `part` stands among the tokens of `text`, whose character offsets are given; moved by `shift`."""
    begin = text.index(part)
    inside = [i for i, (a, b) in enumerate(offsets) if b > begin and a < begin + len(part)]
    return slice(inside[0] + shift, inside[-1] + 1 + shift)
