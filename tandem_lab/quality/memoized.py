"""A model and an index that remember what they computed, for many simulated runs of the same few questions.

Whatever the placement and the link, a question meets the same prefixes again and again, and logits and scores are a
function of those alone. Knows nothing of sides, clocks or links.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from tandem.codecs import codec_of
from tandem.config.schema import Config
from tandem.topology import PARTIES

if TYPE_CHECKING:
    from tandem.conversation import Message
    from tandem.engine.engine import Engine, OpenResult
    from tandem.retrieval.langchain import StoreRetriever
    from tandem.retrieval.retriever import Retriever
    from tandem_lab.quality.local import LocalPair

_Prompt = tuple[str, tuple[str, ...], int, tuple["Message", ...]]
"""What a session is opened with: query, documents, max_new_tokens, history."""


class MemoizedEngine:
    """An `Engine` as `LocalPair` uses it. Sessions with the same prompt share what was computed."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._prompts: dict[str, _Prompt] = {}  # by session
        self._opened: dict[_Prompt, OpenResult] = {}  # sessions of the engine itself, named by their prompt
        self._logits: dict[tuple[_Prompt, tuple[int, ...]], Any] = {}

    def open(
        self,
        session: str,
        query: str,
        documents: Sequence[str],
        max_new_tokens: int,
        *,
        history: Sequence[Message] = (),
        scores_question: bool = False,
    ) -> OpenResult:
        """As `Engine.open`; questions are always scored."""
        prompt = (query, tuple(documents), max_new_tokens, tuple(history))
        if prompt not in self._opened:
            self._opened[prompt] = self._engine.open(
                repr(prompt), query, documents, max_new_tokens, history=history, scores_question=True
            )
        self._prompts[session] = prompt
        return self._opened[prompt]

    def next_logits(self, session: str, tokens: Sequence[int]) -> Any:
        """As `Engine.next_logits`."""
        prompt = self._prompts[session]
        key = (prompt, tuple(tokens))
        if key not in self._logits:
            self._logits[key] = self._engine.next_logits(repr(prompt), tokens)
        return self._logits[key]

    def question_likelihoods(self, session: str) -> tuple[float, ...]:
        """As `Engine.question_likelihoods`."""
        return self._engine.question_likelihoods(repr(self._prompts[session]))

    def close(self, session: str) -> None:
        """As `Engine.close`; the engine keeps its own session."""
        self._prompts.pop(session, None)

    def close_all(self) -> None:
        """Free what the engine holds; what was computed stays known."""
        for prompt in self._opened:
            self._engine.close(repr(prompt))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


class MemoizedRetriever:
    """A `Retriever` as `LocalPair` uses it."""

    def __init__(self, retriever: Retriever | StoreRetriever) -> None:
        self.search = cache(retriever.search)


def local_pair(config: Config) -> LocalPair:
    """Both sides of `config` in this process, each question computed once. Raises TandemError."""
    from tandem.actors.loading import load_embedder_and_scorer, load_engine
    from tandem.retrieval.factory import open_retriever
    from tandem_lab.quality.local import LocalPair

    loaded: dict[tuple[str, ...], MemoizedEngine] = {}
    embedder, scorer = load_embedder_and_scorer(config, num_threads=1)
    engines, retrievers = {}, {}
    for party in PARTIES:
        own = config.party(party)
        key = (own.model, own.torch_device, own.dtype, own.template, own.system_prompt)
        if key not in loaded:
            loaded[key] = MemoizedEngine(load_engine(own, num_threads=1))
        engines[party] = loaded[key]
        retrievers[party] = MemoizedRetriever(open_retriever(party, config, embedder, scorer))
    return LocalPair(cast(Any, engines), cast(Any, retrievers), codec_of(config.codec))
