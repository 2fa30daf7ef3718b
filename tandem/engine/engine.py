"""The engine of one party: a model, its tokenizer, and the sessions that are open on them.

It turns (question, documents, tokens so far) into the logits of every document's row.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from types import MappingProxyType
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from tandem import plugins
from tandem.conversation import NO_FRAME, SYSTEM_PROMPT, THOUGHT_END, Frame, Message
from tandem.engine import tokenizer as tokenizers
from tandem.engine.kv import Cache, DiskStore
from tandem.engine.places import AUTO, base_of, expand, load_tokenizer, name_engine
from tandem.engine.port import IsStale, LoadOptions, Logits
from tandem.engine.prompt import Prompt, PromptBuilder
from tandem.engine.session import Runner
from tandem.engine.shaping import Grammar
from tandem.engine.template import Template, find_template
from tandem.engine.tokenizer import TokenizerInfo, describe_tokenizer
from tandem.errors import GenerationError

_log = logging.getLogger("tandem")


class Engine:
    """A loaded model. Calls may come from several threads; they run one after the other."""

    def __init__(
        self, name: str, runner: Runner, tokenizer: Tokenizer, info: TokenizerInfo, template: Template
    ) -> None:
        """Made by `Engine.load`."""
        self.name = name
        self.runner = runner
        vocabulary = tokenizers.Vocabulary.of(tokenizer)
        vocabulary.check(runner.vocab_size, name)
        self.vocab_size = runner.vocab_size = vocabulary.size
        self.caches, self.turns = runner.caches, runner.turns
        self.vocabulary_prefixes = vocabulary.prefixes
        self.vocabulary_fingerprint = vocabulary.prefixes[0]  # equal where all token ids mean the same
        self.longest_token = vocabulary.longest  # in bytes, at least
        self._holes = vocabulary.find_holes()
        self._tokenizer = tokenizers.copy_tokenizer(tokenizer)  # the prompts change theirs
        self.detokenizer = tokenizers.Detokenizer(self._tokenizer)
        self.tokenizer_name = describe_tokenizer(tokenizer, info)
        self.template = template
        self._prompts = PromptBuilder(tokenizer, template, info.all_special_ids, runner.context_length)
        self.text_tokenizer = self._prompts.text_tokenizer  # for what other models write into an answer
        eos = tokenizers.find_eos_token_ids(*runner.configurations, info, self.vocab_size)
        self.eos_token_ids = tuple(sorted({*eos, *self._prompts.end_token_ids}))
        self._lock = threading.Lock()
        if runner.fault is not None:
            _log.warning("%s", self.fallback)

    @classmethod
    def load(
        cls,
        model: str,
        *,
        engine: str = AUTO,
        template: Template | str = "auto",
        system_prompt: str = SYSTEM_PROMPT,
        **options: Any,
    ) -> Engine:
        """Load a causal model and its tokenizer by folder, GGUF file or hub id; GenerationError says what is wrong.

        engine: the plugin that computes it, or "auto". template: as the setting of that name (`find_template`).
        options: as of `LoadOptions`.
        """
        path, how = expand(model), LoadOptions(**options)
        plugin = name_engine(engine, path, how.device)
        if not plugins.has("engine", plugin):
            names = ", ".join([AUTO, *plugins.names("engine")])
            raise GenerationError(f"There is no engine {plugin!r:.60}; set engine to one of {names}.")
        runner: Runner = plugins.find("engine", plugin)(path, how)
        tokenizer, info = load_tokenizer(path)
        runner.check_tokenizer(tokenizer, model)
        if isinstance(template, str):
            template = find_template(template, base_of(path), info, system_prompt)
        return cls(model, runner, tokenizer, info, template)

    @cached_property
    def tokenizer_json(self) -> str:
        """The tokenizer for other processes; megabytes."""
        return self._tokenizer.to_str()

    def count_tokens(self, texts: list[str]) -> int:
        """Tokens of all these texts, without special ones. Does not wait for a pass that is running."""
        encoded = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return sum(map(len, encoded))

    @property
    def context_length(self) -> int | None:
        """Positions that a row may have; None: there is no limit."""
        return self.runner.context_length

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
        frame: Frame = NO_FRAME,
    ) -> Prompt:
        """Start `session`. It only tokenises; the first `next_logits` computes the prompt, preemptibly.

        Of the context an answer gets `answer_room` at most, and documents that do not fit with it are cut at their end,
        or dropped; an empty one is a row without a document. history: turns before the query. num_stored: documents
        whose caches go to the store once computed, the first ones; None: all. Those of documents that were cut never
        go there: the query decides where. scores_question: whether `question_likelihoods` will be asked for. frame:
        what the query says to the template. GenerationError if the query does not fit or the session is already open.
        """
        with self._lock:
            if session in self.runner.sessions:
                raise GenerationError(f"Session {session!r} is already open; close it first.")
            if self.context_length is not None:
                room = self._prompts.within(frame).answer_room(query, self.context_length, history)
                max_new_tokens = min(max_new_tokens, room)
            prompt = self.build_prompt(query, documents, max_new_tokens, history, frame)
            self.runner.open(
                session,
                prompt.rows(num_stored),
                max_new_tokens,
                num_scored=prompt.num_question if scores_question else 0,
                is_later_turn=bool(history),
            )
        return prompt

    def answer_room(
        self, query: str, history: Sequence[Message] = (), frame: Frame = NO_FRAME, context: int | None = None
    ) -> int:
        """Tokens that an answer to this question may have in a context of so many tokens; default: the model's.

        Does not wait for a pass that is running. ValueError if the model has no limit either.
        """
        length = context or self.context_length
        if length is None:
            raise ValueError("a model without a limit of context leaves any room")
        return self._prompts.within(frame).answer_room(query, length, history)

    def follow(self, grammar: str, vocab_size: int, ends: Sequence[int]) -> Grammar:
        """Follow a query's grammar with this model's tokens. Raises GenerationError where that cannot be done here.

        vocab_size, ends: the tokens that the query may use, and those that end its answer.
        """
        model = self.tokenizer_json, self.vocab_size, self.eos_token_ids
        opened: Grammar = plugins.find("grammar", "llguidance")(model, grammar, vocab_size, ends)
        return opened

    def forward(
        self,
        answers: Mapping[str, Sequence[int]],
        num_logits: Mapping[str, int] = MappingProxyType({}),
        *,
        is_stale: IsStale | None = None,
    ) -> list[Logits]:
        """Logits [rows, num_logits, vocab_size] float32 of each session, as `Runner.forward` computes them; read only.

        GenerationError if a session is not open, a token is outside of the vocabulary, or there are not that many
        prefixes.
        """
        for session, tokens in answers.items():
            self._check(session, tokens, num_logits.get(session, 1))
        with self._lock:
            computed = self.runner.forward(answers, num_logits, is_stale)
            return [self._without_holes(logits) for logits in computed]

    def _without_holes(self, logits: Logits) -> Logits:
        """Logits with which ids below the vocabulary's size that name no token are never drawn."""
        if not self._holes:
            return logits
        logits = logits.copy() if isinstance(logits, np.ndarray) else logits.clone()
        logits[..., self._holes] = -math.inf
        return logits

    def next_logits(self, session: str, tokens: Sequence[int], *, is_stale: IsStale | None = None) -> Logits:
        """Logits [rows, vocab_size] float32 after the query and `tokens`; `forward` of one session."""
        return self.forward({session: tokens}, is_stale=is_stale)[0][:, -1]

    def question_likelihoods(self, session: str) -> tuple[float, ...]:
        """The `question_likelihood` of each row, without the first token; once the prompt is computed."""
        with self._lock:
            return self.runner.likelihoods(session)

    def _check(self, session: str, tokens: Sequence[int], num_logits: int) -> None:
        if session not in self.runner.sessions:
            raise GenerationError(f"Session {session!r} is not open; open it first.")
        if not 1 <= num_logits <= len(tokens) + 1:
            raise GenerationError(
                f"{num_logits} logits are wanted of {len(tokens)} tokens; ask for 1 to {len(tokens) + 1}."
            )
        for token in tokens:
            if not 0 <= token < self.vocab_size:
                raise GenerationError(
                    f"Token {token} is outside the vocabulary of {self.name!r}, [0, {self.vocab_size}); "
                    "check that both parties use one vocabulary."
                )

    @property
    def fallback(self) -> str:
        """A sentence on why one token of one session is computed at a time; empty if many are."""
        if self.runner.fault is None:
            return ""
        return (
            f"The model {self.name!r} computes one token of one query at a time, because {self.runner.fault} (on this "
            "machine, in this precision); answers are the same, many queries at once are slower."
        )

    def describe(self) -> dict[str, Any]:
        """A description for the other parties, in plain values for JSON. Reads every weight once."""
        return {
            "tokenizer": self.tokenizer_name,
            "template": self.template.describe(),
            "template_fingerprint": self.template.fingerprint,
            "writes_day": self.template.writes_day,
            "thinking": self.template.thinking if self.detokenizer.shows(THOUGHT_END) else "",
            "vocabulary_fingerprint": self.vocabulary_fingerprint,
            "vocabulary_prefixes": list(self.vocabulary_prefixes),
            "weights_fingerprint": self.runner.weights_fingerprint,
            "vocab_size": self.vocab_size,
            **self.runner.describe(),
            "context_length": self.context_length,
            "longest_token": self.longest_token,
            "eos_token_ids": list(self.eos_token_ids),
            "batching": self.fallback,  # why sessions are not batched; "" if they are
        }

    def close(self, session: str) -> None:
        """Free the session's cache, or keep it for a later turn; does nothing if there is none."""
        with self._lock:
            self.runner.close(session)

    def build_prompt(
        self,
        query: str | Sequence[int],
        documents: Sequence[str],
        num_tokens: int,
        history: Sequence[Message] = (),
        frame: Frame = NO_FRAME,
    ) -> Prompt:
        """The rows of a question, or of token ids that are used as they are, with room for `num_tokens`."""
        return self._prompts.within(frame).build(query, documents, num_tokens, history)

    def document_tokens(self, document: str, frame: Frame = NO_FRAME) -> tuple[int, ...]:
        """The tokens with which the row of a whole document begins. GenerationError if they fill the context, or there
        are none."""
        return self._prompts.within(frame).document_tokens(document)

    def document_cache(self, document: str, frame: Frame = NO_FRAME) -> Cache:
        """The cache of `document_tokens`: fetched, or computed and stored."""
        tokens = self.document_tokens(document, frame)
        with self._lock:
            cache = self.caches.find(tokens)
            if cache is None:
                cache = computed = self.runner.compute_document(tokens)
                self.caches.keep(tokens, lambda: computed)
            return cache

    @property
    def cache_fingerprint(self) -> str:
        """Equal for engines that may use each other's caches of documents: the same bits, of the same chat template."""
        computing = self.runner.computing_fingerprint
        if not self.template.is_complete:
            return computing  # as version 0.1 had it
        return sha256(f"{computing} {self.template.document}".encode()).hexdigest()[:32]


# ---- Caches of all documents of an index before the first question -----------------------------------------


@dataclass(slots=True)
class PrecomputeReport:
    """The outcome for the documents, as counts, and for the store."""

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
    if progress:
        progress(0, num_documents)
    store.prune({store.name(_tokens(engine, document(number))) for number in range(num_documents)})
    bytes_per_token = 0.0
    for number in range(num_documents):
        tokens = _tokens(engine, document(number))
        if not tokens:
            report.num_too_long += 1
        elif store.get(tokens) is not None:
            report.num_present += 1
        elif not store.can_write or store.num_bytes + bytes_per_token * len(tokens) > store.max_bytes:
            report.num_left_out += 1  # storing it would evict what was stored just before
        else:
            bytes_per_token = engine.document_cache(document(number)).num_bytes / len(tokens)
            is_stored = store.get(tokens) is not None
            report.num_computed += is_stored
            report.num_left_out += not is_stored
        if progress:
            progress(number + 1, num_documents)
    report.num_bytes = store.num_bytes
    return report


def _tokens(engine: Engine, document: str) -> tuple[int, ...]:
    """The tokens of a document, none where it is too long."""
    try:
        return engine.document_tokens(document)
    except GenerationError:
        return ()
