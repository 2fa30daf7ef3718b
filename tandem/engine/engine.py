"""The engine of one party: a model, its tokenizer, and the sessions that are open on them.

It turns (question, documents, tokens so far) into the logits of every document's row.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

import torch
from tokenizers import Tokenizer

from tandem.conversation import SYSTEM_PROMPT, Message
from tandem.engine import model as models
from tandem.engine import tokenizer as tokenizers
from tandem.engine.batch import (
    ARITHMETIC,
    BatchModel,
    IsStale,
    Preempted,
    PreemptibleModel,
    describe_fallback,
    find_fault,
)
from tandem.engine.kv import DiskStore, DocumentCache, DocumentCaches
from tandem.engine.places import base_of, expand_home
from tandem.engine.prompt import Prompt, PromptBuilder
from tandem.engine.session import (
    Feed,
    GrowingSession,
    OpenResult,
    Session,
    TurnCaches,
    compute,
    compute_document,
    compute_row,
)
from tandem.engine.template import Template, find_template
from tandem.engine.tokenizer import describe_tokenizer
from tandem.errors import GenerationError

__all__ = ["Engine", "Feed", "OpenResult", "Preempted"]

_log = logging.getLogger("tandem")
EXPECTED_TOKENS = 64
"""Of an answer, for which caches have room from the beginning; they grow."""


class Engine:
    """A loaded model. Calls may come from several threads; they run one after the other."""

    def __init__(
        self,
        name: str,
        model: Any,
        tokenizer: Tokenizer,
        wrapper: Any,
        template: Template,
        *,
        is_batched: bool = True,
    ) -> None:
        """Made by `Engine.load`. tokenizer: the fast tokenizer; wrapper: transformers' view of it. is_batched: False
        computes one token of one session at a time, as models do that fail the self-check.
        """
        models.check_cache(model)
        self.name = name
        self.model = model  # of transformers; not to be changed
        self.vocab_size = tokenizers.vocab_size(tokenizer, models.num_logits(model), name)
        self.vocabulary_prefixes = tokenizers.fingerprint_prefixes(tokenizer)
        self.longest_token = max(len(token.encode()) for token in tokenizer.get_vocab())  # in bytes, at least
        self._holes = torch.tensor(tokenizers.find_holes(tokenizer), device=model.device)
        self.context_length = models.context_length(model.config)
        self.tokenizer_json = tokenizer.to_str()
        self.tokenizer_name = describe_tokenizer(tokenizer, wrapper)
        self.template = template
        begin = tuple(map(int, wrapper.all_special_ids))
        self._prompts = PromptBuilder(tokenizer, template, begin, self.context_length)
        self._day = ""  # of these prompts
        eos = tokenizers.find_eos_token_ids(
            getattr(model, "generation_config", None), model.config, wrapper, self.vocab_size
        )
        self.eos_token_ids = tuple(sorted({*eos, *self._prompts.end_token_ids}))
        self._detokenizer = tokenizers.Detokenizer(self.tokenizer_json)
        self._forward = PreemptibleModel(model, models.decoder_layers(model))
        self.caches = DocumentCaches()  # set its `store` to keep them
        self.turns = TurnCaches()  # set its `max_bytes` to keep any
        self.sessions: dict[str, Session | GrowingSession] = {}  # open ones, by name; read only
        self.fault: str | None = "batching is off"  # why sessions are not batched; None if they are
        self._batch = self._try_batching() if is_batched else None
        self._lock = threading.Lock()
        self.weights: models.Weights | None = None  # that it may share with others

    @classmethod
    def load(
        cls,
        model: str,
        *,
        device: str = "cpu",
        dtype: str = "float32",
        num_threads: int | None = None,
        template: Template | str = "auto",
        system_prompt: str = SYSTEM_PROMPT,
        is_batched: bool = True,
        shares_weights: bool = False,
    ) -> Engine:
        """Load a causal model and its tokenizer by directory or hub id; GenerationError says what is wrong.

        device: "cpu", "cuda" or "cuda:<n>". dtype: what it computes in, "float32", "bfloat16" or "float16".
        num_threads: of PyTorch in this whole process. template: as the setting of that name (`find_template`).
        is_batched: as for the constructor. shares_weights: with other engines of this process that do, where model,
        device and dtype are equal; none of them may change a weight.
        """
        if num_threads is not None:
            models.set_num_threads(num_threads)
        path = expand_home(model)
        models.convert(path, dtype)
        tokenizer, wrapper = models.load_tokenizer(path)
        if isinstance(template, str):
            template = find_template(template, base_of(path), wrapper, system_prompt)
        if not shares_weights:
            loaded = models.load_model(path, device=device, dtype=dtype)
            return cls(model, loaded, tokenizer, wrapper, template, is_batched=is_batched)
        weights = models.load_weights(path, device=device, dtype=dtype)
        engine = cls(model, weights.make_model(), tokenizer, wrapper, template, is_batched=is_batched)
        engine.weights = weights  # as long as it is here, another engine finds it
        return engine

    def open(
        self,
        session: str,
        query: str,
        documents: Sequence[str],
        max_new_tokens: int,
        *,
        history: Sequence[Message] = (),
        num_stored: int | None = None,
        scores_question: bool = False,
        day: str = "",
    ) -> OpenResult:
        """Start `session`. It only tokenises; the first `next_logits` computes the prompt, preemptibly.

        Of the context an answer gets `answer_room` at most, and documents that do not fit with it are cut at their end,
        or dropped; see `OpenResult`. An empty document is a row without one. history: turns of the conversation before
        the query. num_stored: documents whose caches go to the store once computed, the first ones; None: all. Not
        where several are joined in one, which hardly ever comes again, or where the store is not to know them. Those of
        documents that were cut never go there: the query decides where. scores_question: whether
        `question_likelihoods` is wanted. day: of the query, as 2026-11-25, for a template that writes it; one that is
        given none always writes the same. GenerationError if the query does not fit or the session is already open.
        """
        with self._lock:
            if session in self.sessions:
                raise GenerationError(f"Session {session!r} is already open; close it first.")
            if self.context_length is not None:
                room = self._on(day).answer_room(query, self.context_length, history)
                max_new_tokens = min(max_new_tokens, room)
            prompt = self.build_prompt(query, documents, max_new_tokens, history, day)
            self.sessions[session] = self.make_session(
                prompt,
                max_new_tokens,
                num_stored=num_stored,
                is_later_turn=bool(history),
                num_scored=prompt.num_question if scores_question else 0,
            )
        return OpenResult(
            num_rows=len(prompt.document_tokens),
            num_prompt_tokens=tuple(len(row) + len(prompt.query_tokens) for row in prompt.document_tokens),
            documents=prompt.documents,
            truncated=prompt.truncated,
            dropped=prompt.dropped,
        )

    def answer_room(
        self, query: str, history: Sequence[Message] = (), day: str = "", context: int | None = None
    ) -> int:
        """Tokens that an answer to this question may have in a context of so many tokens; default: the model's.

        day: as in `open`. Does not wait for a pass that is running. ValueError if the model has no limit either.
        """
        length = context or self.context_length
        if length is None:
            raise ValueError("a model without a limit of context leaves any room")
        prompts = self._prompts if day == self._day else self._prompts.on(day)
        return prompts.answer_room(query, length, history)

    def make_session(
        self,
        prompt: Prompt,
        num_new_tokens: int,
        *,
        num_stored: int | None = None,
        is_later_turn: bool = False,
        num_scored: int = 0,
    ) -> Session | GrowingSession:
        """What `open` keeps for a prompt; not yet one of `sessions`. is_later_turn: whether it continues another."""
        if self._batch is None:
            return GrowingSession(
                prompt,
                self._forward,
                self.caches,
                self.vocab_size,
                num_stored=num_stored,
                num_scored=num_scored,
            )
        return Session(
            prompt,
            self.caches,
            self.vocab_size,
            self._forward.device,
            num_new_tokens=min(num_new_tokens, EXPECTED_TOKENS),
            num_stored=num_stored,
            num_scored=num_scored,
            turns=self.turns if is_later_turn else None,
        )

    def forward(self, batch: Sequence[Feed], *, is_stale: IsStale | None = None) -> list[torch.Tensor]:
        """Logits [rows, num_logits, vocab_size] float32 of each feed, in passes that all of them share; read only.

        A row's logits are a function of its own tokens alone, bit for bit, whatever else is in the batch, however
        tokens are grouped and whatever was computed and rolled back before. is_stale: asked before every layer; once
        it says True, Preempted is raised, and what whole passes had computed stays in the caches. GenerationError if
        a session is not open or has two feeds, a token is outside of the vocabulary, or there are not that many
        prefixes.
        """
        for feed in batch:
            self._check_feed(feed)
        if len({feed.session for feed in batch}) < len(batch):
            raise GenerationError("A session has two feeds in one batch; give it one.")
        with self._lock, torch.inference_mode():
            if self._batch is None:
                return [self._without_holes(self._grow(feed, is_stale)) for feed in batch]
            sessions = [self._session(feed.session) for feed in batch]
            for session, feed in zip(sessions, batch, strict=True):
                session.want(feed.tokens, feed.num_logits)
            compute(self._batch, sessions, is_stale)
            return [self._without_holes(session.logits) for session in sessions]

    def _without_holes(self, logits: torch.Tensor) -> torch.Tensor:
        """Ids below the vocabulary's size that name no token are never drawn."""
        return logits.index_fill(-1, self._holes, -torch.inf) if len(self._holes) else logits

    def next_logits(
        self, session: str, tokens: Sequence[int], *, is_stale: IsStale | None = None
    ) -> torch.Tensor:
        """Logits [rows, vocab_size] float32 after the query and `tokens`; `forward` of one feed."""
        return self.forward([Feed(session, tokens)], is_stale=is_stale)[0][:, -1]

    def question_likelihoods(self, session: str) -> tuple[float, ...]:
        """Of each row: what the question counts (`question_likelihood`), without its first token; once the prompt is
        computed."""
        with self._lock:
            return self.sessions[session].likelihoods

    def crop(self, session: str, num_tokens: int) -> None:
        """Forget all but the first `num_tokens` of the answer, as `forward` does where a feed has other tokens."""
        with self._lock:
            self.sessions[session].crop(num_tokens)

    def _session(self, name: str) -> Session:
        session = self.sessions[name]
        assert isinstance(session, Session)
        return session

    def _grow(self, feed: Feed, is_stale: IsStale | None) -> torch.Tensor:
        session, count = self.sessions[feed.session], len(feed.tokens) + 1
        assert isinstance(session, GrowingSession)
        prefixes = (feed.tokens[:end] for end in range(count - feed.num_logits, count))
        return torch.stack([session.logits_after(prefix, is_stale) for prefix in prefixes], dim=1)

    def _check_feed(self, feed: Feed) -> None:
        if feed.session not in self.sessions:
            raise GenerationError(f"Session {feed.session!r} is not open; open it first.")
        if not 1 <= feed.num_logits <= len(feed.tokens) + 1:
            count = len(feed.tokens)
            raise GenerationError(
                f"{feed.num_logits} logits are wanted of {count} tokens; ask for 1 to {count + 1}."
            )
        self.check_tokens(feed.tokens)

    def _try_batching(self) -> BatchModel | None:
        """The model that computes batches, if the self-check finds no fault."""
        batch = BatchModel(self._forward)
        self.fault = find_fault(batch, self.model, self.vocab_size, self.context_length)
        if self.fault is None:
            return batch
        batch.release()
        _log.warning("%s", self.fallback)
        return None

    @property
    def fallback(self) -> str:
        """A sentence on why one token of one session is computed at a time; empty if many are."""
        return "" if self.fault is None else describe_fallback(self.name, self.fault)

    def describe(self) -> dict[str, Any]:
        """What the other parties are told of it, to be compared with theirs before the first query: plain values for
        JSON. Reads every weight once.
        """
        return {
            "tokenizer": self.tokenizer_name,
            "template": self.template.describe(),
            "template_fingerprint": self.template.fingerprint,
            "writes_day": self.template.writes_day,
            "vocabulary_fingerprint": self.vocabulary_fingerprint,
            "vocabulary_prefixes": list(self.vocabulary_prefixes),
            "weights_fingerprint": self.weights_fingerprint,
            "vocab_size": self.vocab_size,
            "num_parameters": self.model.num_parameters(),
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "context_length": self.context_length,
            "longest_token": self.longest_token,
            "eos_token_ids": list(self.eos_token_ids),
            "batching": self.fallback,  # why sessions are not batched; "" if they are
        }

    def close(self, session: str) -> None:
        """Free the session's cache, or keep it for a later turn; does nothing if there is none."""
        with self._lock:
            closed = self.sessions.pop(session, None)
            if isinstance(closed, Session) and (rows := closed.computed):
                self.turns.keep(rows, closed.cache)

    def build_prompt(
        self,
        query: str | Sequence[int],
        documents: Sequence[str],
        num_tokens: int,
        history: Sequence[Message] = (),
        day: str = "",
    ) -> Prompt:
        """The rows of a query (a question, or token ids that are used as they are) with room for `num_tokens`."""
        return self._on(day).build(query, documents, num_tokens, history)

    def _on(self, day: str) -> PromptBuilder:
        if day != self._day:
            self._prompts, self._day = self._prompts.on(day), day
        return self._prompts

    def document_tokens(self, document: str, day: str = "") -> tuple[int, ...]:
        """The tokens with which the row of a whole document begins, on a day as in `open`.

        GenerationError if they fill the context, or there are none.
        """
        return self._on(day).document_tokens(document)

    def document_cache(self, document: str, day: str = "") -> DocumentCache:
        """The cache of those tokens: fetched, or computed and stored. GenerationError as above."""
        tokens = self.document_tokens(document, day)
        with self._lock, torch.inference_mode():
            cache = self.caches.find(tokens)
            if cache is None:
                cache = computed = self._compute_document(tokens)
                self.caches.keep(tokens, lambda: computed)
            return cache

    def _compute_document(self, tokens: tuple[int, ...]) -> DocumentCache:
        if self._batch is None:
            return compute_document(self._forward, tokens, None)
        return compute_row(self._batch, tokens).save(0, len(tokens))

    @cached_property
    def weights_fingerprint(self) -> str:
        """Equal for engines of the same weights and precision; reads them all, once."""
        return models.fingerprint_weights(self.model)

    @property
    def computing_fingerprint(self) -> str:
        """Equal for engines that compute the same bits: weights, libraries, kind of processor, threads."""
        computation = models.fingerprint_computation(self.model, self.weights_fingerprint)
        if self._batch is None:
            return computation
        return sha256(f"{computation} {ARITHMETIC}".encode()).hexdigest()[:32]

    @property
    def cache_fingerprint(self) -> str:
        """Equal for engines that may use each other's caches of documents: the same bits, of the same chat template.

        The tokens of a document name the template too. This tells a store that was made for another one.
        """
        if not self.template.is_complete:
            return self.computing_fingerprint  # as version 0.1 had it
        return sha256(f"{self.computing_fingerprint} {self.template.document}".encode()).hexdigest()[:32]

    @property
    def vocabulary_fingerprint(self) -> str:
        """Equal for engines whose token ids mean the same."""
        return self.vocabulary_prefixes[0]

    def text(self, tokens: Sequence[int]) -> str:
        """The text of an answer's `tokens`, special tokens left out."""
        return self._detokenizer.text(tokens)

    def check_tokens(self, tokens: Sequence[int]) -> None:
        """GenerationError if a token lies outside of the vocabulary."""
        for token in tokens:
            if not 0 <= token < self.vocab_size:
                raise GenerationError(
                    f"Token {token} is outside the vocabulary of {self.name!r}, [0, {self.vocab_size}); "
                    "check that both parties use one vocabulary."
                )


# ---- Caches of all documents of an index before the first question -----------------------------------------


@dataclass(slots=True)
class PrecomputeReport:
    """What became of each document, in numbers of documents, and of the store."""

    num_computed: int = 0
    num_present: int = 0  # stored before, and intact
    num_too_long: int = 0  # longer than the context: cut, and computed, for each question
    num_left_out: int = 0  # beyond the store's budget, or refused by the disk: computed when used
    num_bytes: int = 0  # of the store


def precompute(
    engine: Engine,
    store: DiskStore,
    num_documents: int,
    document: Callable[[int], str],
    progress: Callable[[int, int], None] | None = None,
) -> PrecomputeReport:
    """Store the caches of all documents, each as soon as it is computed, and remove everything else from `store`.

    document(i): text of the i-th. progress(done, total) counts documents.
    """
    engine.caches.store = store
    report = PrecomputeReport()
    names = (store.name(_tokens(engine, document(number))) for number in range(num_documents))
    store.prune(set(names))
    bytes_per_token = 0.0
    for number in range(num_documents):
        if progress:
            progress(number, num_documents)
        tokens = _tokens(engine, document(number))
        if not tokens:
            report.num_too_long += 1
        elif store.get(tokens) is not None:
            report.num_present += 1
        elif not store.can_write or store.num_bytes + bytes_per_token * len(tokens) > store.max_bytes:
            report.num_left_out += 1  # storing it would evict what was stored just before
        else:
            bytes_per_token = engine.document_cache(document(number)).num_bytes / len(tokens)
            if store.get(tokens) is not None:
                report.num_computed += 1
            else:
                report.num_left_out += 1
    if progress:
        progress(num_documents, num_documents)
    report.num_bytes = store.num_bytes
    return report


def _tokens(engine: Engine, document: str) -> tuple[int, ...]:
    """The tokens of a document, none where it is too long."""
    try:
        return engine.document_tokens(document)
    except GenerationError:
        return ()
