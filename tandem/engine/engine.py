"""The engine of one party: a model, its tokenizer, and the sessions that are open on them.

It turns (question, documents, tokens so far) into the logits of every document's row.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

import torch
from tokenizers import Tokenizer

from tandem.conversation import SYSTEM_PROMPT, Message
from tandem.engine import model as models
from tandem.engine import tokenizer as tokenizers
from tandem.engine.chat_template import find_template
from tandem.engine.forward import IsStale, Preempted, PreemptibleModel
from tandem.engine.kv_cache import DocumentCache, DocumentCaches
from tandem.engine.prompt import Prompt, PromptBuilder
from tandem.engine.session import Session
from tandem.engine.template import Template
from tandem.engine.tokenizer_difference import describe_tokenizer
from tandem.errors import GenerationError

__all__ = ["Engine", "OpenResult", "Preempted"]


@dataclass(frozen=True, slots=True)
class OpenResult:
    """What a session was opened with."""

    num_rows: int  # at least 1: without documents there is one bare row
    num_prompt_tokens: tuple[int, ...]  # [rows]
    documents: tuple[int, ...]  # [rows]: index of each row's document; empty for a bare row
    truncated: tuple[int, ...]  # indices of documents whose end was cut off to fit the context
    dropped: tuple[int, ...]  # indices of documents that found no room and have no row


class Engine:
    """A loaded model. Calls may come from several threads; they run one after the other."""

    def __init__(self, name: str, model: Any, tokenizer: Tokenizer, wrapper: Any, template: Template) -> None:
        """Made by `Engine.load`. tokenizer: the fast tokenizer; wrapper: transformers' view of it."""
        models.check_cache(model)
        self.name = name
        self.model = model  # of transformers; not to be changed
        self.vocab_size = tokenizers.vocab_size(tokenizer, models.num_logits(model), name)
        self.vocabulary_fingerprint = tokenizers.fingerprint_vocabulary(tokenizer)
        self.context_length = models.context_length(model.config)
        self.tokenizer_json = tokenizer.to_str()
        self.tokenizer_name = describe_tokenizer(tokenizer, wrapper)
        bos = () if wrapper.bos_token_id is None else (int(wrapper.bos_token_id),)
        self.template = template
        self._prompts = PromptBuilder(tokenizer, template, bos, self.context_length)
        eos = tokenizers.find_eos_token_ids(
            getattr(model, "generation_config", None), model.config, wrapper, self.vocab_size
        )
        self.eos_token_ids = tuple(sorted({*eos, *self._prompts.end_token_ids}))
        self._detokenizer = tokenizers.Detokenizer(self.tokenizer_json)
        self._forward = PreemptibleModel(model, models.decoder_layers(model))
        self.caches = DocumentCaches(self._forward)  # set its `store` to keep them
        self.sessions: dict[str, Session] = {}  # open ones, by name; read only
        self._lock = threading.Lock()

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
    ) -> Engine:
        """Load a causal model and its tokenizer by directory or hub id; GenerationError says what is wrong.

        device: "cpu", "cuda" or "cuda:<n>". dtype: what it computes in, "float32", "bfloat16" or "float16".
        num_threads: of PyTorch in this whole process. template: as the setting of that name (`find_template`).
        """
        if num_threads is not None:
            _set_num_threads(num_threads)
        path = models.expand_home(model)
        tokenizer, wrapper = models.load_tokenizer(path)
        if isinstance(template, str):
            template = find_template(template, path, wrapper, system_prompt)
        loaded = models.load_model(path, device=device, dtype=dtype)
        return cls(model, loaded, tokenizer, wrapper, template)

    def open(
        self,
        session: str,
        query: str,
        documents: Sequence[str],
        max_new_tokens: int,
        *,
        history: Sequence[Message] = (),
        is_stored: bool = True,
    ) -> OpenResult:
        """Start `session`. It only tokenises; the first `next_logits` computes the prompt, preemptibly.

        Documents that do not fit the context with the query and `max_new_tokens` are cut at their end, or dropped; see
        `OpenResult`. history: turns of the conversation before the query. is_stored: whether caches that are computed
        go to the store; not where several documents are joined in one, which hardly ever comes again, or where the
        store is not to know them. Those of documents that were cut never go there: the query decides where.
        GenerationError if the query does not fit or the session is already open.
        """
        with self._lock:
            if session in self.sessions:
                raise GenerationError(f"Session {session!r} is already open; close it first.")
            prompt = self._prompts.build(query, documents, max_new_tokens, history)
            self.sessions[session] = Session(
                prompt, self._forward, self.caches, self.vocab_size, is_stored=is_stored
            )
        return OpenResult(
            num_rows=len(prompt.document_tokens),
            num_prompt_tokens=tuple(len(row) + len(prompt.query_tokens) for row in prompt.document_tokens),
            documents=prompt.documents,
            truncated=prompt.truncated,
            dropped=prompt.dropped,
        )

    def next_logits(
        self, session: str, tokens: Sequence[int], *, is_stale: IsStale | None = None
    ) -> torch.Tensor:
        """Logits [rows, vocab_size] float32 after the query and `tokens`; read only.

        The cache is cropped to what it shares with `tokens` and the rest is fed token by token: the result is
        a function of `tokens` alone, bit for bit. is_stale: asked before every layer; once it says True,
        Preempted is raised, and what whole passes had computed stays in the cache.
        """
        if session not in self.sessions:
            raise GenerationError(f"Session {session!r} is not open; open it first.")
        self.check_tokens(tokens)
        with self._lock:
            return self.sessions[session].logits_after(tokens, is_stale)

    def close(self, session: str) -> None:
        """Free the session's cache; does nothing if there is none."""
        self.sessions.pop(session, None)

    def build_prompt(
        self,
        query: str | Sequence[int],
        documents: Sequence[str],
        num_tokens: int,
        history: Sequence[Message] = (),
    ) -> Prompt:
        """The rows of a query (a question, or token ids that are used as they are) with room for `num_tokens`."""
        return self._prompts.build(query, documents, num_tokens, history)

    def document_tokens(self, document: str) -> tuple[int, ...]:
        """The tokens with which the row of a whole document begins.

        GenerationError if they fill the context, or there are none.
        """
        return self._prompts.document_tokens(document)

    def document_cache(self, document: str) -> DocumentCache:
        """The cache of those tokens: fetched, or computed and stored. GenerationError as above."""
        tokens = self.document_tokens(document)
        with self._lock:
            return self.caches.get(tokens)

    @cached_property
    def weights_fingerprint(self) -> str:
        """Equal for engines of the same weights and precision; reads them all, once."""
        return models.fingerprint_weights(self.model)

    @property
    def computing_fingerprint(self) -> str:
        """Equal for engines that compute the same bits: weights, libraries, kind of processor, threads."""
        return models.fingerprint_computation(self.model, self.weights_fingerprint)

    @property
    def cache_fingerprint(self) -> str:
        """Equal for engines that may use each other's caches of documents: the same bits, of the same chat template.

        The tokens of a document name the template too. This tells a store that was made for another one.
        """
        if not self.template.is_complete:
            return self.computing_fingerprint  # as version 0.1 had it
        return sha256(f"{self.computing_fingerprint} {self.template.document}".encode()).hexdigest()[:32]

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


def _set_num_threads(num_threads: int) -> None:
    if num_threads < 1:
        raise GenerationError(f"num_threads is {num_threads}; set it to at least 1.")
    torch.set_num_threads(num_threads)
