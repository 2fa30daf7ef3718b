"""A model and an index that remember what they computed, for many simulated runs of the same few questions.

Whatever the placement and the link, a question meets the same prefixes again and again, and logits and scores are a
function of those alone. Knows nothing of sides, clocks or links.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from tandem.codecs import codec_of
from tandem.config.schema import Config
from tandem.conversation import NO_FRAME, Frame, Message
from tandem.topology import PARTIES

if TYPE_CHECKING:
    from tandem.engine.engine import Engine
    from tandem.engine.prompt import Prompt
    from tandem.retrieval.retriever import DocumentSearch
    from tandem_lab.quality.local import LocalPair

_Prompt = tuple[str, tuple[str, ...], int, tuple[Message, ...], Frame]
"""What a session is opened with: query, documents, max_new_tokens, history, frame."""


class MemoizedEngine:
    """An `Engine` as `LocalPair` uses it. Sessions with the same prompt share what was computed."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._prompts: dict[str, _Prompt] = {}  # by session
        self._opened: dict[_Prompt, Prompt] = {}  # sessions of the engine itself, named by their prompt
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
        frame: Frame = NO_FRAME,
    ) -> Prompt:
        """As `Engine.open`; questions are always scored."""
        prompt = (query, tuple(documents), max_new_tokens, tuple(history), frame)
        if prompt not in self._opened:
            self._opened[prompt] = self._engine.open(
                repr(prompt),
                query,
                documents,
                max_new_tokens,
                history=history,
                scores_question=True,
                frame=frame,
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

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


class MemoizedRetriever:
    """A `Retriever` as `LocalPair` uses it."""

    def __init__(self, retriever: DocumentSearch) -> None:
        self.search, self.marks = cache(retriever.search), getattr(retriever, "marks", None)
        self.join = getattr(retriever, "join", list)


class Loaded:
    """Models and indexes of some settings, each loaded once it is asked for. Parties with one model share it."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def engine(self, party: str) -> Any:
        """The model of a party, of pieces if those of all parties need them. Raises TandemError."""
        return self._engines[party]

    @cached_property
    def _engines(self) -> Mapping[str, Any]:
        from tandem.actors.loading import engine_key, load_engine
        from tandem_lab.quality.pieces import in_common

        parties = {party: self._config.party(party) for party in self._config.parties}
        by_key = {engine_key(own): own for own in parties.values()}
        loaded = {key: MemoizedEngine(load_engine(own, num_threads=1)) for key, own in by_key.items()}
        return in_common({party: loaded[engine_key(own)] for party, own in parties.items()})

    def retriever(self, party: str) -> MemoizedRetriever:
        """The index of a party. Raises TandemError."""
        from tandem.retrieval.retriever import open_retriever

        return MemoizedRetriever(open_retriever(party, self._config, *self._scorers))

    @cached_property
    def _scorers(self) -> tuple[Any, Any]:
        from tandem.actors.loading import load_embedder_and_scorer

        return load_embedder_and_scorer(self._config, num_threads=1)


def local_pair(config: Config) -> LocalPair:
    """Both sides of `config` in this process, each question computed once. Raises TandemError."""
    from tandem_lab.quality.local import LocalPair

    loaded = Loaded(config)
    engines: Any = {party: loaded.engine(party) for party in PARTIES}
    retrievers: Any = {party: loaded.retriever(party) for party in PARTIES}
    return LocalPair(engines, retrievers, codec_of(config.codec))
