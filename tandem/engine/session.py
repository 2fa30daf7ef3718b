"""Sessions on a model that computes segments of rows: what of each is cached, and moving them along a prefix of tokens.

One row per document: the document, the question, the answer so far. Documents come from the store or are computed, rows
are computed alone or with others, and again after a rollback, always with the same bits. A `RowModel` promises this
either for any segments, or for segments of a fixed shape (`RowModel.block`), which then depend on the row alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

from tokenizers import Tokenizer

from tandem.aggregation.document_weights import log_evidence, question_likelihood
from tandem.engine.kv import Cache, CacheForm, DocumentCaches, KeptPrefix, TurnCaches, common_length
from tandem.engine.port import IsStale, Logits, Row

# ---- What a model computes -----------------------------------------------------------------------------------


class RowCache(Protocol):
    """The cache that a model has for the rows of one session."""

    def load(self, row: int, cache: Cache) -> None:
        """Let a row begin with what `save` gave."""

    def rewind(self, row: int, num_tokens: int) -> int:
        """How many of the first `num_tokens` tokens of a row are still cached once the others are forgotten. All, where
        what comes next overwrites these."""
        return num_tokens

    def save(self, row: int, num_tokens: int) -> Cache:
        """The tokens of a row, of which there are so many."""

    def release(self) -> None:
        """Give back what is not freed with the object."""
        return


@dataclass(eq=False)
class Segment:
    """New tokens of some neighbouring rows of one cache, equally many in each."""

    cache: Any  # of the model that computes it
    first_row: int
    starts: Sequence[int]  # [rows]: position of each row's first new token
    tokens: Sequence[Sequence[int]]  # [rows][new]
    num_logits: int  # that are wanted, after the last tokens of each row

    @property
    def num_rows(self) -> int:
        """Rows."""
        return len(self.tokens)

    @property
    def num_new(self) -> int:
        """New tokens of each row."""
        return len(self.tokens[0])

    @property
    def num_tokens(self) -> int:
        """New tokens of all rows."""
        return self.num_rows * self.num_new


class RowModel(Protocol):
    """A model that computes segments of many caches. A row's logits do not depend on what else is computed."""

    max_tokens: int  # the most of all segments that it gets together
    block: int | None = None
    """None: a row has the same bits whatever its segments are. Else they have a fixed shape: one row each, a document
    and what follows it in blocks of so many tokens, and from the prompt's last token on one token each."""
    keeps_turns: bool = True  # whether the rows of an ended session can begin those of another one
    expected_tokens: int = 64
    """Caches have room for an answer of so many from the beginning, if it may become so long."""

    def make_cache(self, num_rows: int, num_columns: int) -> RowCache:
        """For so many rows, with room for so many tokens of each; it grows if more come."""

    def __call__(self, segments: Sequence[Segment], is_stale: IsStale | None = None) -> Sequence[Logits]:
        """Logits [rows, num_logits, vocab of the model] float32 of every segment. May raise Preempted."""

    def empty(self, shape: tuple[int, ...]) -> Logits:
        """Room for logits, float32."""

    def probabilities(self, logits: Logits, tokens: Sequence[int]) -> list[float]:
        """The probability of each of the tokens. logits: [tokens, vocab]; the bits of one do not depend on others."""


# ---- One session ---------------------------------------------------------------------------------------------


class QuestionScores:
    """The likelihood of the last tokens of each prompt, added up as passes reach them."""

    def __init__(
        self,
        prompts: Sequence[Sequence[int]],
        num_scored: int,
        probabilities: Callable[[Logits, Sequence[int]], list[float]],
    ) -> None:
        """prompts: [rows] of tokens. num_scored: of each the last ones, of which the first is given. probabilities: as
        of `RowModel`.
        """
        self.num_scored = num_scored
        self._prompts, self._probabilities = prompts, probabilities
        self._next = [len(prompt) - num_scored for prompt in prompts]  # column that tells of the next
        self._totals = [0.0] * len(prompts)

    @property
    def likelihoods(self) -> tuple[float, ...]:
        """The `question_likelihood` of each row, once computed."""
        return tuple(question_likelihood(total, self.num_scored - 1) for total in self._totals)

    def add(self, row: int, first: int, logits: Logits) -> None:
        """Add what columns from `first` on tell of the prompt's next tokens. logits: [columns, vocab]."""
        prompt, start = self._prompts[row], self._next[row]
        stop = min(len(prompt) - 1, first + len(logits))
        if not self.num_scored or not first <= start < stop:
            return
        probabilities = self._probabilities(
            logits[start - first : stop - first], prompt[start + 1 : stop + 1]
        )
        for value in log_evidence(probabilities):
            self._totals[row] += value
        self._next[row] = stop


class EngineSession:
    """The rows of one prompt. Nothing is computed before the first pass."""

    def __init__(
        self,
        rows: Sequence[Row],
        model: RowModel,
        caches: DocumentCaches,
        vocab_size: int,
        *,
        num_new_tokens: int = 0,
        turns: TurnCaches | None = None,
        num_scored: int = 0,
    ) -> None:
        """num_new_tokens: expected of the answer. turns: rows of earlier turns, for a prompt that continues them.
        num_scored: the last tokens of the prompt, whose likelihood `scores` adds up.
        """
        self._model, self._caches, self._vocab_size = model, caches, vocab_size
        self._turns = turns
        self._rows = rows
        self._prompts = [list(row.tokens) for row in rows]
        self.cache: Any = model.make_cache(len(rows), max(map(len, self._prompts)) + num_new_tokens)
        self._lengths: list[int] = []  # [rows]: columns that are cached; empty: documents not yet looked up
        self._unsaved: set[int] = set()  # rows whose document is not yet kept
        self._tokens: tuple[int, ...] = ()  # of the answer; those that are cached come first
        # [rows, requested, vocab] float32, whole once `next_segments` has nothing left
        self.logits: Logits = model.empty((len(rows), 0, vocab_size))
        self.scores = QuestionScores(self._prompts, num_scored, model.probabilities)

    def crop(self, num_tokens: int) -> None:
        """Forget all but the first `num_tokens` of the answer."""
        if (num_forgotten := len(self._tokens) - num_tokens) > 0:
            self._tokens = self._tokens[:num_tokens]
            self.logits = self.logits[:, : max(0, self.logits.shape[1] - num_forgotten)]
            self._shorten(0)

    def end(self, turns: TurnCaches) -> None:
        """Keep its rows for a later turn, if there is room, and free what they took."""
        if self._lengths and turns.max_bytes and self._model.keeps_turns:
            for row, length in enumerate(self._lengths):
                num_tokens = self.cache.rewind(row, self._num_kept(row, length))
                cache = self.cache.save(row, num_tokens)
                turns.keep(self._tokens_of(row, 0, num_tokens), cache, len(self._rows[row].document))
        self.cache.release()

    def _num_kept(self, row: int, length: int) -> int:
        """Columns of a row, of which `length` are cached, that a later turn may begin with. Where segments have a fixed
        shape, not the answer, which as part of a prompt is computed in blocks."""
        if self._model.block is None:
            return length
        return self._whole_blocks(row, min(length, len(self._prompts[row]) - 1))

    def request(self, tokens: Sequence[int], num_logits: int) -> None:
        """Passes now compute the logits after the prompt and `tokens`, and after `num_logits` - 1 shorter prefixes."""
        tokens = tuple(tokens)
        self.crop(common_length(self._tokens, tokens))
        computed = self.logits
        if tokens == self._tokens and num_logits == computed.shape[1]:
            return
        first = len(tokens) - num_logits + 1
        before = first - (len(self._tokens) - computed.shape[1] + 1)  # columns that are no longer asked for
        num_computed = max(0, self._num_computed - first + 1) if before >= 0 else 0
        self._tokens = tokens
        self.logits = self._model.empty((len(self._prompts), num_logits, self._vocab_size))
        self.logits[:, :num_computed] = computed[:, before : before + num_computed]
        self._shorten(num_logits - num_computed)

    @property
    def _num_computed(self) -> int:
        """Tokens of the answer that all rows have."""
        ends = zip(self._lengths or [0] * len(self._prompts), self._prompts, strict=True)
        return min(length - len(prompt) for length, prompt in ends)

    def next_segments(self, max_tokens: int) -> Iterator[Segment]:
        """The segments to compute next for the requested logits, at most so many tokens; none once they are there."""
        if not self._lengths:
            self._lengths = [self._load(row, each.document) for row, each in enumerate(self._rows)]
            self._shorten(self._num_columns)
        if self._model.block is not None:
            yield from self._fixed_segments(max_tokens)
            return
        ends = zip(self._prompts, self._lengths, strict=True)
        pending = [len(prompt) + len(self._tokens) - length for prompt, length in ends]
        for num_pending, group in groupby(range(len(pending)), key=pending.__getitem__):
            rows = list(group)
            while rows and num_pending and max_tokens > 0:
                some, rows = rows[:max_tokens], rows[max_tokens:]
                count = min(num_pending, max_tokens // len(some))
                yield self._segment(some, count, num_pending)
                max_tokens -= count * len(some)

    def _fixed_segments(self, max_tokens: int) -> Iterator[Segment]:
        for row, (prompt, length) in enumerate(zip(self._prompts, self._lengths, strict=True)):
            num_pending = len(prompt) + len(self._tokens) - length
            count = self._next_border(row, length) - length
            if num_pending and count <= max_tokens:
                yield self._segment([row], count, num_pending)
                max_tokens -= count

    def finish(self, segment: Segment, logits: Logits) -> None:
        """A pass computed `segment`. logits: [rows, num_logits of the segment, vocab of the model]."""
        num_logits = self.logits.shape[1]
        for row, start, row_logits in zip(
            range(segment.first_row, segment.first_row + segment.num_rows),
            segment.starts,
            logits,
            strict=True,
        ):
            self._lengths[row] = end = start + segment.num_new
            computed = row_logits[:, : self._vocab_size]
            num_left = len(self._prompts[row]) + len(self._tokens) - end
            at = num_logits - num_left  # behind the last one computed
            if segment.num_logits and at > 0:
                num_kept = min(at, segment.num_logits)
                self.logits[row, at - num_kept : at] = computed[segment.num_logits - num_kept :]
            self.scores.add(row, end - segment.num_logits, computed)
            if row in self._unsaved and end >= len(self._rows[row].document):
                self._save(row)

    def _next_border(self, row: int, length: int) -> int:
        """Where the segment of fixed shape ends that begins at this column, which is a border."""
        block = self._model.block
        assert block is not None
        document, last = len(self._rows[row].document), len(self._prompts[row]) - 1
        if length >= last:
            return length + 1
        return min(length + block, document if length < document else last)

    def _border(self, row: int, length: int) -> int:
        """The last column up to this one at which a segment may begin."""
        last = len(self._prompts[row]) - 1
        return length if length >= last else self._whole_blocks(row, length)

    def _whole_blocks(self, row: int, length: int) -> int:
        """Up to this column of the prompt, the last one at which a segment may begin."""
        document, block = len(self._rows[row].document), self._model.block
        if block is None:
            return length
        start = document if length >= document else 0
        return start + (length - start) // block * block

    def _segment(self, rows: Sequence[int], count: int, num_pending: int) -> Segment:
        starts = [self._lengths[row] for row in rows]
        tokens = [self._tokens_of(row, start, start + count) for row, start in zip(rows, starts, strict=True)]
        left = num_pending - count
        num_logits = min(count, max(0, self._num_columns - left))
        return Segment(self.cache, rows[0], starts, tokens, num_logits)

    @property
    def _num_columns(self) -> int:
        """How many of the last columns need logits."""
        num_logits: int = self.logits.shape[1]
        return num_logits if self._tokens else max(num_logits, self.scores.num_scored)

    def _tokens_of(self, row: int, start: int, end: int) -> list[int]:
        prompt = self._prompts[row]
        answer = self._tokens[max(0, start - len(prompt)) : max(0, end - len(prompt))]
        return [*prompt[start:end], *answer]

    def _shorten(self, num_logits: int) -> None:
        """Keep what the present tokens need, without the columns whose logits are wanted."""
        for row, length in enumerate(self._lengths):
            end = self._border(row, len(self._prompts[row]) + len(self._tokens) - num_logits)
            if length > end:
                self._lengths[row] = self.cache.rewind(row, end)

    def _load(self, row: int, tokens: tuple[int, ...]) -> int:
        """Columns of a row that an earlier turn or the store knew. tokens: of its document."""
        kept = None if self._turns is None else self._turns.find(self._prompts[row], len(tokens))
        if self._turns is not None and kept is not None:
            num_tokens = self._usable(row, kept)
            if num_tokens >= max(1, len(tokens)):
                self.cache.load(row, kept.cache)
                num_tokens = self.cache.rewind(row, num_tokens)
            if num_tokens >= max(1, len(tokens)):
                self._caches.num_hits += bool(tokens)
                self._turns.num_reused += num_tokens - len(tokens)
                return num_tokens
        if not tokens:
            return 0
        cache = self._caches.find(tokens)
        if cache is None:
            self._unsaved.add(row)
            return 0
        self.cache.load(row, cache)
        return len(tokens)

    def _usable(self, row: int, kept: KeptPrefix) -> int:
        """Columns of a kept row that this one would compute in the same segments."""
        document, block = len(self._rows[row].document), self._model.block
        if block is None:
            return kept.num_tokens
        if kept.num_document != document:
            return min(kept.num_tokens, kept.num_document, document) // block * block
        return self._whole_blocks(row, kept.num_tokens)

    def _save(self, row: int) -> None:
        self._unsaved.remove(row)
        each = self._rows[row]
        self._caches.keep(
            each.document, lambda: self.cache.save(row, len(each.document)), is_stored=each.is_stored
        )


def compute(model: RowModel, sessions: Sequence[EngineSession], is_stale: IsStale | None = None) -> None:
    """Compute the requested logits of all sessions, in passes that they share if they may; Preempted if is_stale()
    turns True."""
    while segments := list(_next_segments(model, sessions)):
        for some in [segments] if model.block is None else ([each] for each in segments):
            computed = model([segment for _, segment in some], is_stale)
            for (session, segment), logits in zip(some, computed, strict=True):
                session.finish(segment, logits)


def _next_segments(
    model: RowModel, sessions: Sequence[EngineSession]
) -> Iterator[tuple[EngineSession, Segment]]:
    left = model.max_tokens
    for session in sessions:
        for segment in session.next_segments(left):
            yield session, segment
            left -= segment.num_tokens


# ---- Many sessions -------------------------------------------------------------------------------------------


class Runner(ABC):
    """A language model that computes rows. Calls come from several threads, one after the other.

    The promise: a row's logits are a function of that row and the answer so far alone, bit for bit, whatever else is
    computed with them, however sessions are grouped, and whatever was computed and forgotten before.
    """

    row_model: RowModel
    vocab_size: int  # tokens that logits are given for: the model's, or fewer where its tokenizer has fewer
    context_length: int | None  # positions that a row may have; None: there is no limit
    fault: str | None = None  # why sessions do not share passes; None: they do
    configurations: tuple[Any, Any] = (None, None)
    """Those of generation and of the model, as transformers has them; None: there is none."""
    form: CacheForm  # how its caches are written to files

    def __init__(self) -> None:
        self.caches = DocumentCaches()  # set its `store` to keep them
        self.turns = TurnCaches()  # set its `max_bytes` to keep any
        self.sessions: dict[str, EngineSession] = {}  # open ones, by name; read only

    @property
    @abstractmethod
    def weights_fingerprint(self) -> str:
        """32 hexadecimal digits: equal for the same weights in the same precision."""

    @property
    @abstractmethod
    def computing_fingerprint(self) -> str:
        """32 hexadecimal digits: equal for runners that compute the same bits."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """`engine` (its name and version), `num_parameters`, `num_bytes` and `dtype`, as the other parties are told;
        plain values for JSON."""

    def check_tokenizer(self, tokenizer: Tokenizer, name: str) -> None:  # noqa: B027 (torch has nothing to compare)
        """GenerationError if the model's own vocabulary, where it has one, is another. name: of the model."""

    def open(
        self, session: str, rows: Sequence[Row], num_new_tokens: int, *, num_scored: int, is_later_turn: bool
    ) -> None:
        """Start a session; the first pass looks up its documents and computes the rest.

        num_new_tokens: of the answer, at most. num_scored: the last tokens of each row, of which `likelihoods` will
        tell. is_later_turn: whether it continues another session.
        """
        self.sessions[session] = EngineSession(
            rows,
            self.row_model,
            self.caches,
            self.vocab_size,
            num_new_tokens=min(num_new_tokens, self.row_model.expected_tokens),
            num_scored=num_scored,
            turns=self.turns if is_later_turn else None,
        )

    def forward(
        self, answers: Mapping[str, Sequence[int]], num_logits: Mapping[str, int], is_stale: IsStale | None
    ) -> list[Logits]:
        """Logits [rows, num_logits, vocab_size] float32 of each session, in order; read only. Raises Preempted, after
        which what whole passes had computed is kept.

        answers: the whole answer so far of each; what of it was computed before is not computed again. num_logits:
        after all tokens and after so many shorter prefixes that there are this many; default 1.
        """
        sessions = [self.sessions[name] for name in answers]
        for session, (name, tokens) in zip(sessions, answers.items(), strict=True):
            session.request(tokens, num_logits.get(name, 1))
        compute(self.row_model, sessions, is_stale)
        return [session.logits for session in sessions]

    def likelihoods(self, session: str) -> tuple[float, ...]:
        """The `question_likelihood` of each row, from its last `num_scored` - 1 tokens, once they are computed."""
        return self.sessions[session].scores.likelihoods

    def close(self, session: str) -> None:
        """Free a session, or keep its rows for a later turn; does nothing if there is none."""
        if closed := self.sessions.pop(session, None):
            closed.end(self.turns)

    def compute_document(self, tokens: tuple[int, ...]) -> Cache:
        """The cache of a document's tokens, which it neither looks for in the store nor puts there."""
        model = self.row_model
        cache, step = model.make_cache(1, len(tokens)), model.block or model.max_tokens
        try:
            for start in range(0, len(tokens), step):
                model([Segment(cache, 0, [start], [tokens[start : start + step]], 0)])
            return cache.save(0, len(tokens))
        finally:
            cache.release()
