"""Pieces: what parties with different vocabularies write one answer of, and how each model reads and says them.

A piece is the bytes of a token that some party has; piece 0 is the end. All parties have the same list of pieces, so an
answer is a sequence of numbers below its size, as it is of tokens where vocabularies fit, and everything but the
engines goes on as ever. With pieces x committed, the tokens of a party are its own tokenization of their bytes, a
function of x alone; its distribution after them is the model's, the probability of tokens that spell equal bytes added
up, of those that end an answer, too, and without those that spell nothing.

Here, and only here, does text that another model wrote become tokens: never a marker, nor a special token.
"""

from __future__ import annotations

import json
import math
import zlib
from codecs import getincrementaldecoder
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from hashlib import sha256
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tandem import plugins
from tandem.aggregation.document_weights import MIN_PROBABILITY, Evidence, log_evidence
from tandem.codecs.base import MAX_VOCAB
from tandem.engine.drafter import row_probabilities
from tandem.engine.port import IsStale, Logits
from tandem.engine.shaping import Grammar
from tandem.engine.tokenizer import Detokenizer, Spelling
from tandem.errors import Code, GenerationError, ProtocolError

if TYPE_CHECKING:
    from tandem.engine.engine import Engine

END = 0
"""The piece that ends an answer."""
MAX_PIECE_BYTES = 512
"""Longer tokens are left out: no model of today has one."""
MAX_LIST_BYTES = 1 << 24
"""A vocabulary, unpacked; the largest of today has 3 MB."""
MAX_LISTS = 8
"""Lists that a cloud has with its devices at once."""
TOKENS_PER_PIECE = 2
"""Of an answer's pieces the tokens that a context has room for: a vocabulary without a piece reads it as several."""
MAX_COLUMNS = 32
"""Tokens of one pass at most whose likelihood is caught up on."""
MAX_GAIN = -math.log(MIN_PROBABILITY)
"""The likelihood of the tokens may also grow: "lamps" is likelier where it is read as one than "lamp" was."""
KEPT_READINGS = 256
"""Beginnings of an answer of which what was computed is kept."""
SAMPLE = "The rain, the sun: 12 of 30.\n  Yes"
"""A text that any tokenizer gives back, unless it changes texts."""

# ---- the list ------------------------------------------------------------------------------------------------


def pack(texts: Iterable[bytes]) -> bytes:
    """A party's vocabulary for the others: distinct texts of 1 to MAX_PIECE_BYTES bytes in order, compressed."""
    ordered = sorted(set(texts))
    lengths = np.fromiter(map(len, ordered), "<u2", len(ordered))
    return zlib.compress(len(ordered).to_bytes(4, "little") + lengths.tobytes() + b"".join(ordered))


def unpack(packed: bytes) -> list[bytes]:
    """Inverse of `pack`, of what a stranger may have sent. Raises ProtocolError."""
    try:
        inflated = zlib.decompressobj()
        data = inflated.decompress(packed, MAX_LIST_BYTES)
        size = int.from_bytes(data[:4], "little")
        lengths = np.frombuffer(data, "<u2", size, offset=4) if 0 < size < MAX_VOCAB else ()
        ends = list(accumulate(map(int, lengths), initial=4 + 2 * size))
        texts = [data[start:end] for start, end in pairwise(ends)]
        is_whole = inflated.eof and not inflated.unused_data and ends[-1] == len(data)
    except (zlib.error, ValueError):
        texts, is_whole = [], False
    is_sorted = all(before < after for before, after in pairwise([b"", *texts]))
    if not (
        is_whole and is_sorted and 0 < len(texts) < MAX_VOCAB and max(map(len, texts)) <= MAX_PIECE_BYTES
    ):
        raise ProtocolError(
            f"A vocabulary must be up to {MAX_VOCAB - 1} distinct texts in order, of at most {MAX_PIECE_BYTES} bytes "
            "each, but the other party's is not; install the same version of tandem-rag everywhere."
        )
    return texts


class Pieces(Detokenizer):
    """The list that some parties share, and the text of an answer made of it. It can be pickled."""

    def __init__(self, vocabularies: Mapping[str, bytes]) -> None:
        """vocabularies: of each party, as of `pack`. Raises ProtocolError, and GenerationError for too many pieces."""
        self.vocabularies = dict(vocabularies)
        own = [frozenset(unpack(packed)) for packed in vocabularies.values()]
        self.texts = (b"", *sorted(frozenset[bytes]().union(*own)))  # by number; of the end: empty
        self._num_tokens, self._num_shared = [len(each) for each in own], len(frozenset.intersection(*own))
        if self.size > MAX_VOCAB:
            raise GenerationError(
                f"The vocabularies of {', '.join(vocabularies)} have {self.size} pieces together, and an answer may be "
                f"of {MAX_VOCAB}; use models that share a tokenizer."
            )

    @property
    def size(self) -> int:
        """Pieces, the end among them."""
        return len(self.texts)

    @cached_property
    def fingerprint(self) -> str:
        """32 hexadecimal digits, equal for equal lists."""
        digest = sha256(np.fromiter(map(len, self.texts), "<u2", self.size).tobytes())
        digest.update(b"".join(self.texts))
        return digest.hexdigest()[:32]

    def describe(self) -> str:
        """The rule and its size, for a user."""
        listed, share = (
            " and ".join(f"{size:,}" for size in self._num_tokens),
            self._num_shared / min(self._num_tokens),
        )
        return f"{self.size:,} pieces of {listed} tokens, {share:.0%} of the fewest shared"

    def join(self, pieces: Sequence[int]) -> bytes:
        """The bytes of an answer's beginning."""
        return b"".join(self.texts[piece] for piece in pieces)

    @cached_property
    def _listed(self) -> str:
        return json.dumps({"pieces": [text.decode("latin-1") for text in self.texts]})

    def follow(self, grammar: str, vocab_size: int, ends: Sequence[int]) -> Grammar:
        """As of `Engine`, with pieces."""
        model = self._listed, self.size, (END,)
        opened: Grammar = plugins.find("grammar", "llguidance")(model, grammar, vocab_size, ends)
        return opened

    # ---- the text, as a detokenizer gives it -------------------------------------------------------------------

    def spell(self, token: int) -> Spelling:
        """Name and bytes of one piece."""
        text = self.texts[token]
        return Spelling(text.decode(errors="backslashreplace"), tuple(text) or None)

    def text(self, tokens: Sequence[int]) -> str:
        """The text of an answer; bytes that are no characters are shown as one."""
        return self.join(tokens).decode(errors="replace")

    def shows(self, marker: str) -> bool:
        """All text is shown."""
        return True

    def settled_text(self, tokens: Sequence[int]) -> str:
        """The beginning of `text(tokens)` that no further piece can change."""
        return getincrementaldecoder("utf-8")("replace").decode(self.join(tokens))


class PieceLists:
    """The lists that a party shares with others, the latest few."""

    def __init__(self) -> None:
        self._lists: dict[str, Pieces] = {}  # by fingerprint

    @property
    def vocabularies(self) -> list[dict[str, bytes]]:
        """Of each list, by party."""
        return [pieces.vocabularies for pieces in self._lists.values()]

    def add(self, vocabularies: dict[str, bytes]) -> Pieces:
        """Make a list. Raises as `Pieces`."""
        pieces = _list_pieces(tuple(vocabularies.items()))
        self._lists.setdefault(pieces.fingerprint, pieces)
        forget_first(self._lists, MAX_LISTS)
        return pieces

    def get(self, fingerprint: str) -> Pieces | None:
        """The list with a fingerprint; None: it is not here."""
        return self._lists.get(fingerprint)

    def find(self, fingerprint: str) -> Pieces | None:
        """The list of a query's answer; None: it is of tokens. Raises GenerationError where it is not there."""
        if fingerprint and fingerprint not in self._lists:
            raise GenerationError(
                f"The pieces of this answer ({fingerprint:.40}) are listed by another party alone; start it again, or "
                "connect again.",
                code=Code.CHANGED,
            )
        return self._lists[fingerprint] if fingerprint else None


@lru_cache(MAX_LISTS)
def _list_pieces(vocabularies: tuple[tuple[str, bytes], ...]) -> Pieces:
    """Actors that share a process share a list."""
    return Pieces(dict(vocabularies))


# ---- a party's reading ---------------------------------------------------------------------------------------


def spell_tokens(engine: Engine) -> list[bytes]:
    """The bytes of each token; empty for one that spells nothing: a special token, a marker, a hole."""
    silent = engine.text_tokenizer.forbidden | set(engine.eos_token_ids)
    spelled = (engine.detokenizer.spell(token).utf8 for token in range(engine.vocab_size))
    return [
        bytes(utf8) if utf8 and len(utf8) <= MAX_PIECE_BYTES and token not in silent else b""
        for token, utf8 in enumerate(spelled)
    ]


class TextTokens:
    """The tokens of one party by their bytes."""

    def __init__(self, engine: Engine, name: str) -> None:
        """name: of the model. Raises GenerationError for a tokenizer that changes texts."""
        self.texts = spell_tokens(engine)
        self.ends = engine.eos_token_ids
        self._encode = engine.text_tokenizer.encode
        self._by_text = {text: token for token, text in reversed(list(enumerate(self.texts))) if text}
        read = b"".join(self.texts[token] for token in self.read(SAMPLE.encode())).decode(errors="replace")
        if read != SAMPLE:
            raise GenerationError(
                f"The tokenizer of {name!r} changes texts: it makes {read!r} of {SAMPLE!r}, so it cannot read what a "
                "model with another vocabulary writes; use models that share a tokenizer."
            )

    @cached_property
    def packed(self) -> bytes:
        """For the other parties."""
        return pack(filter(None, self.texts))

    def read(self, data: bytes) -> tuple[int, ...]:
        """The tokens of bytes within an answer, a function of them alone. What is not (yet) a character is read by its
        longest tokens. What the vocabulary lacks is left out: the token for it may be one that ends texts."""
        tokens = list[int]()
        for run in _runs(data):
            tokens += self._encode(run).ids if isinstance(run, str) else self._read_bytes(run)
        return tuple(token for token in tokens if self.texts[token])

    def _read_bytes(self, data: bytes) -> Iterator[int]:
        while data:
            lengths = range(len(data), 0, -1)
            length = next((length for length in lengths if data[:length] in self._by_text), 0)
            if length:
                yield self._by_text[data[:length]]
            data = data[max(1, length) :]


def _runs(data: bytes) -> Iterator[str | bytes]:
    """Characters, and between them bytes that are none, with a space before them, as tokenizers have it."""
    while data:
        try:
            yield data.decode()
            return
        except UnicodeDecodeError as error:
            start = error.start - data[: error.start].endswith(b" ")
            if start:
                yield data[:start].decode()
            yield data[start : error.end]
            data = data[error.end :]


Passes = Generator[tuple[Sequence[int], int], Logits, Logits]
"""What one query asks of an engine: tokens of its answer and how many logits; it is sent these, and returns its own."""


class PieceReader:
    """One party's reading of a list of pieces."""

    def __init__(self, vocabulary: TextTokens, pieces: Pieces) -> None:
        self.vocabulary, self.pieces = vocabulary, pieces
        numbers = dict(zip(pieces.texts, range(pieces.size), strict=True))
        said = [(numbers[text], token) for token, text in enumerate(vocabulary.texts) if text]
        said += [(END, token) for token in vocabulary.ends]
        columns = np.array(sorted(said), np.int64).reshape(-1, 2)
        self._pieces, starts, counts = np.unique(columns[:, 0], return_index=True, return_counts=True)
        self._tokens = columns[starts, 1]  # the first one of each piece
        self._several = np.flatnonzero(counts > 1)
        groups = [columns[starts[at] : starts[at] + counts[at], 1] for at in self._several]
        self._grouped = np.concatenate([np.zeros(0, np.int64), *groups])
        self._group_starts = np.cumsum([0, *counts[self._several][:-1]]) if groups else np.zeros(0, np.int64)

    def spread(self, logits: Logits) -> NDArray[np.float32]:
        """Logits [..., pieces] float32 from those of tokens, [..., vocab]; -inf for what this party cannot say."""
        own = np.asarray(
            logits if isinstance(logits, np.ndarray) else logits.detach().float().cpu(), np.float32
        )
        out = np.full((*own.shape[:-1], self.pieces.size), -np.inf, np.float32)
        out[..., self._pieces] = own[..., self._tokens]
        if self._several.size:
            added = np.logaddexp.reduceat(own[..., self._grouped], self._group_starts, axis=-1)
            out[..., self._pieces[self._several]] = added
        return out


class Reading:
    """One query's answer in one party's model: what its pieces are there, and how well each row predicts them."""

    def __init__(self, reader: PieceReader, room: int | None) -> None:
        """room: tokens that the answer may have; None: any number."""
        self._reader, self._room = reader, room
        self._read: dict[bytes, tuple[int, ...]] = {}
        self._totals: dict[tuple[int, ...], Any] = {}  # log likelihood [rows] of the answer's first tokens

    def tokens(self, pieces: Sequence[int]) -> tuple[int, ...]:
        """The tokens of an answer's beginning. Raises GenerationError where they have no room in the context."""
        data = self._reader.pieces.join(pieces)
        if data not in self._read:
            self._read[data] = self._reader.vocabulary.read(data)
            forget_first(self._read, KEPT_READINGS)
        if self._room is not None and len(self._read[data]) > self._room:
            raise GenerationError(
                f"The answer has {len(self._read[data])} tokens of the model, and {self._room} fit its context; ask "
                "with a lower max_new_tokens."
            )
        return self._read[data]

    def passes(self, pieces: Sequence[int], num_logits: int, *, learns: bool) -> Passes:
        """Logits [rows, num_logits, pieces] after an answer and shorter prefixes of it.

        Prefixes whose tokens continue each other take one pass. learns: whether `evidence` will be asked for.
        """
        ends = range(len(pieces) - num_logits + 1, len(pieces) + 1)
        wanted, columns = [self.tokens(pieces[:end]) for end in ends], list[Logits]()
        while wanted:
            count = 1
            while count < len(wanted) and wanted[count][: len(wanted[count - 1])] == wanted[count - 1]:
                count += 1
            some, wanted = wanted[:count], wanted[count:]
            last, first = some[-1], len(some[0])
            if learns:
                first = min(first, (yield from self._catch_up(last)))
            logits = yield last, len(last) - first + 1
            self._note(last, first, logits)
            columns += [self._reader.spread(logits[:, len(tokens) - first]) for tokens in some]
        return np.stack(columns, axis=1)

    def evidence(self, pieces: Sequence[int], piece: int, forward: Callable[[Passes], Any]) -> Evidence:
        """`log_evidence` of a piece after others: by how much the log likelihood of the tokens grows in each row.

        forward: runs passes, of which none is left where the piece is a token more.
        """
        totals = []
        for tokens in (self.tokens(pieces), self.tokens([*pieces, piece])):
            forward(self._learn(tokens))
            totals.append(self._totals[tokens])
        gains = np.clip(totals[1] - totals[0], -MAX_GAIN, MAX_GAIN)
        return log_evidence(np.exp(gains).tolist())

    def _learn(self, tokens: tuple[int, ...]) -> Passes:
        """Compute the likelihood of a sequence, unless it is known."""
        first = yield from self._catch_up(tokens)
        if first < len(tokens):
            self._note(tokens, first, (yield tokens[:-1], len(tokens) - first))

    def _catch_up(self, tokens: tuple[int, ...]) -> Generator[tuple[Sequence[int], int], Logits, int]:
        """How many tokens have a known likelihood; all but the last few."""
        while len(tokens) - (known := self._num_known(tokens)) > MAX_COLUMNS:
            some = tokens[: known + MAX_COLUMNS]
            self._note(some, known, (yield some[:-1], MAX_COLUMNS))
        return known

    def _num_known(self, tokens: tuple[int, ...]) -> int:
        self._totals.setdefault((), 0.0)
        return next(end for end in range(len(tokens), -1, -1) if tokens[:end] in self._totals)

    def _note(self, tokens: tuple[int, ...], first: int, logits: Logits) -> None:
        """Note what columns say of the token after each. logits: [rows, columns, vocab], after `first` tokens on."""
        if (known := self._num_known(tokens)) < first:
            return  # nobody learns
        total = self._totals[tokens[:known]]
        for end in range(known, min(len(tokens), first + logits.shape[1])):
            shares = row_probabilities(logits[:, end - first])[:, tokens[end]].astype(np.float64)
            self._totals[tokens[: end + 1]] = total = total + np.log(np.maximum(shares, 1e-300))
            forget_first(self._totals, KEPT_READINGS)


def forget_first(kept: dict[Any, Any], most: int) -> None:
    """Drop the oldest of too many."""
    if len(kept) > most:
        del kept[next(iter(kept))]


def run_passes(engine: Engine, asked: Mapping[str, Passes], is_stale: IsStale | None = None) -> list[Logits]:
    """What several queries ask of an engine, by session, as many of them as possible in each of its passes."""
    done: dict[str, Logits] = {}
    answers: dict[str, Logits | None] = dict.fromkeys(asked)
    while answers:
        wanted: dict[str, tuple[Sequence[int], int]] = {}
        for name, logits in answers.items():
            try:
                wanted[name] = asked[name].send(logits)
            except StopIteration as end:
                done[name] = end.value
        if not wanted:
            break
        computed = engine.forward(
            {name: tokens for name, (tokens, _) in wanted.items()},
            {name: number for name, (_, number) in wanted.items()},
            is_stale=is_stale,
        )
        answers = dict(zip(wanted, computed, strict=True))
    return [done[name] for name in asked]
