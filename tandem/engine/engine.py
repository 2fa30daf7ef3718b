"""The generation engine of one side: a model, its tokenizer, and the sessions that are open on them.

It turns (question, documents, tokens so far) into the logits of every document's row. It knows nothing of the
other side, of weights between documents, of drawing tokens, or of time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from tandem.engine import directory, loading, vocabulary
from tandem.engine.decoding import Preempted, PreemptibleModel, Session
from tandem.engine.detokenizer import Detokenizer
from tandem.engine.fingerprint import computing_fingerprint, weights_fingerprint
from tandem.engine.prefill import Prefixes
from tandem.engine.prefixes import PrefixCache
from tandem.engine.prompt import Prompt, PromptBuilder
from tandem.engine.teacher_forcing import forced_log_probabilities
from tandem.engine.template import Template
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
        loading.check_cache(model)
        self.name = name
        self.vocab_size = vocabulary.vocab_size(tokenizer, loading.num_logits(model), name)
        self.vocabulary_fingerprint = vocabulary.fingerprint(tokenizer)
        self.eos_token_ids = vocabulary.eos_token_ids(
            getattr(model, "generation_config", None), model.config, wrapper, self.vocab_size
        )
        self.context_length = loading.context_length(model)
        self.tokenizer_json = tokenizer.to_str()
        bos = () if wrapper.bos_token_id is None else (int(wrapper.bos_token_id),)
        self._prompts = PromptBuilder(tokenizer, template, bos, self.context_length)
        self._detokenizer = Detokenizer(self.tokenizer_json)
        self._model = PreemptibleModel(model, loading.decoder_layers(model))
        self.prefixes = Prefixes(self._model)  # of documents; set its `store` to keep them
        self._sessions: dict[str, Session] = {}
        self._lock = threading.Lock()

    @classmethod
    def load(
        cls,
        model: str,
        *,
        device: str = "cpu",
        dtype: str = "float32",
        num_threads: int | None = None,
        template: Template | None = None,
    ) -> Engine:
        """Load a causal model and its tokenizer by directory or hub id; GenerationError says what is wrong.

        device: "cpu", "cuda" or "cuda:<n>". dtype: what it computes in, "float32", "bfloat16" or "float16".
        num_threads: of PyTorch in this whole process. template: default is template.json beside the model.
        """
        if num_threads is not None:
            _set_num_threads(num_threads)
        path = directory.expanded(model)
        template = template or Template.load(path)
        tokenizer, wrapper = loading.load_tokenizer(path)
        loaded = loading.load_model(path, device=device, dtype=dtype)
        return cls(model, loaded, tokenizer, wrapper, template)

    def open(
        self,
        session: str,
        query: str,
        documents: Sequence[str],
        max_new_tokens: int,
        *,
        is_stored: bool = True,
    ) -> OpenResult:
        """Start `session`. It only tokenises; the first `next_logits` computes the prompt, preemptibly.

        Documents that do not fit the context beside the query and `max_new_tokens` are cut at their end, or
        dropped; see Opened. is_stored: whether caches that are computed go to the store; not so where several
        documents are joined in one, which hardly ever comes again, or where the store is not to know them. Those of
        documents that were cut never go there: the query decides where. GenerationError if the query does not fit
        or the session is open already.
        """
        with self._lock:
            if session in self._sessions:
                raise GenerationError(
                    f"A session is opened once, {session!r} is open already; close it first."
                )
            prompt = self._prompts.build(query, documents, max_new_tokens)
            self._sessions[session] = Session(
                prompt, self._model, self.prefixes, self.vocab_size, is_stored=is_stored
            )
        return OpenResult(
            num_rows=len(prompt.prefixes),
            num_prompt_tokens=tuple(len(prefix) + len(prompt.query) for prefix in prompt.prefixes),
            documents=prompt.documents,
            truncated=prompt.truncated,
            dropped=prompt.dropped,
        )

    def next_logits(
        self, session: str, tokens: Sequence[int], *, is_stale: Callable[[], bool] | None = None
    ) -> torch.Tensor:
        """Logits [rows, vocab_size] float32 after the query and `tokens`; read only.

        The cache is cropped to what it shares with `tokens` and the rest is fed token by token: the result is
        a function of `tokens` alone, bit for bit. is_stale: asked before every layer; once it says True,
        Preempted is raised, and what whole passes had computed stays in the cache.
        """
        if session not in self._sessions:
            raise GenerationError(f"A session must be open, {session!r} is not; open it first.")
        self._check_tokens(tokens)
        with self._lock:
            return self._sessions[session].logits_after(tokens, is_stale)

    def prompt(self, query: str | Sequence[int], documents: Sequence[str], num_tokens: int) -> Prompt:
        """The rows of a query (a question, or token ids that stand as they are) with room for `num_tokens`."""
        return self._prompts.build(query, documents, num_tokens)

    def forced(self, prompt: Prompt, tokens: Sequence[int]) -> NDArray[np.float64]:
        """log p(x_t | row, x_<t) at temperature 1 of each of `tokens`, [rows, tokens]; opens no session."""
        self._check_tokens(tokens)
        with self._lock:
            return forced_log_probabilities(self._model.model, prompt, tokens, self.vocab_size)

    def close(self, session: str) -> None:
        """Free the session's cache; nothing happens if there is none."""
        self._sessions.pop(session, None)

    def prefix_tokens(self, document: str) -> tuple[int, ...]:
        """The tokens with which the row of a whole document begins.

        GenerationError if they fill the context, or there are none at all.
        """
        return self._prompts.prefix(document)

    def prefix(self, document: str) -> PrefixCache:
        """The cache of those tokens: fetched, or computed and stored. GenerationError as above."""
        tokens = self.prefix_tokens(document)
        with self._lock:
            return self.prefixes.get(tokens)

    @cached_property
    def weights_fingerprint(self) -> str:
        """Equal for engines of the same weights and precision; reads them all, once."""
        return weights_fingerprint(self._model.model)

    @property
    def computing_fingerprint(self) -> str:
        """Equal for engines that compute the same bits: weights, libraries, kind of processor, threads."""
        return computing_fingerprint(self._model.model, self.weights_fingerprint)

    def text(self, tokens: Sequence[int]) -> str:
        """The text of an answer's `tokens`, special tokens left out."""
        return self._detokenizer.text(tokens)

    def _check_tokens(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if not 0 <= token < self.vocab_size:
                raise GenerationError(
                    f"A token of {self.name!r} lies in [0, {self.vocab_size}), one is {token}; "
                    "check that both sides use one vocabulary."
                )


def _set_num_threads(num_threads: int) -> None:
    if num_threads < 1:
        raise GenerationError(f"A model needs at least 1 thread, num_threads is {num_threads}; raise it.")
    torch.set_num_threads(num_threads)
