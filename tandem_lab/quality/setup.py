"""Loads what an evaluation needs of the settings: both sides' models, indexes and scoring model, in this process.

Knows settings and files; nothing of methods, and nothing of Ray.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from tandem.actors.loading import load_embedder_and_scorer, load_engine
from tandem.codecs import Codec, codec_of
from tandem.config.schema import Config, PartyConfig
from tandem.engine.engine import Engine
from tandem.engine.kv import MemoryStore
from tandem.retrieval.build import Progress, build_index
from tandem.retrieval.embedding import TextEmbedder
from tandem.retrieval.factory import open_retriever
from tandem.retrieval.index import Index
from tandem.retrieval.retriever import Retriever, Scorer
from tandem.system.paths import cache_folder
from tandem.topology import PARTIES, Party
from tandem_lab.errors import EvaluationError

if TYPE_CHECKING:
    from tandem.retrieval.langchain import StoreRetriever

Say = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Parties:
    """Both sides, ready to be asked."""

    engines: Mapping[Party, Engine]  # one object for both where the settings are equal
    retrievers: Mapping[Party, Retriever | StoreRetriever]
    codec: Codec
    is_halved: bool  # both have halves of what one corpus gives


def load(
    config: Config,
    documents: Path | None = None,
    say: Say = lambda line: None,
    progress: Progress | None = None,
) -> Parties:
    """Both sides of `config`. documents: one corpus for both, instead of their own indexes. Raises TandemError.

    say: a line for each stage. progress(done, total) counts the chunks of `documents` while they are embedded.
    """
    say(f"embedder: loading {config.retrieval.embedder}")
    embedder, scorer = load_embedder_and_scorer(config, num_threads=config.device.num_threads)
    if documents is None:
        retrievers = {party: open_retriever(party, config, embedder, scorer) for party in PARTIES}
    else:
        retrievers = dict.fromkeys(PARTIES, _shared(documents, config, embedder, scorer, say, progress))
    engines = load_engines(config, say)
    return Parties(engines, retrievers, codec_of(config.codec), documents is not None)


def load_engines(config: Config, say: Say = lambda line: None) -> dict[Party, Engine]:
    """The language models of both sides, with caches of documents in memory, since every method uses the same ones.

    EvaluationError where their vocabularies differ.
    """
    loaded: dict[tuple[str, ...], Engine] = {}
    for chosen in (config.device, config.cloud):
        if (key := _key(chosen)) not in loaded:
            say(f"model: loading {chosen.model}")
            loaded[key] = load_engine(chosen)
            loaded[key].caches.store = MemoryStore(chosen.kv_max_bytes)
    engines = {party: loaded[_key(config.party(party))] for party in PARTIES}
    if len({engine.vocabulary_fingerprint for engine in engines.values()}) > 1:
        raise EvaluationError(
            f"Both sides must have one vocabulary, but {config.device.model} and {config.cloud.model} do not; "
            "use models that share a tokenizer."
        )
    return engines


def clipper(engine: Engine, num_tokens: int | None) -> Callable[[str], str]:
    """Cuts a text to its first tokens as the engine's model counts them; None leaves it whole."""
    tokenizer = Tokenizer.from_str(engine.tokenizer_json)
    tokenizer.encode_special_tokens = True

    def clip(text: str) -> str:
        if num_tokens is None:
            return text
        offsets = tokenizer.encode(text, add_special_tokens=False).offsets
        return text if len(offsets) <= num_tokens else text[: offsets[num_tokens - 1][1]]

    return clip


def _key(party: PartyConfig) -> tuple[str, ...]:
    return party.model, party.torch_device, party.dtype, party.template, party.system_prompt


def _shared(
    documents: Path,
    config: Config,
    embedder: TextEmbedder,
    scorer: Scorer | None,
    say: Say,
    progress: Progress | None,
) -> Retriever:
    """The index of a corpus, kept in the cache folder for the next time."""
    retrieval = config.retrieval
    what = f"{documents.resolve()} {embedder.fingerprint} {retrieval}"
    folder = cache_folder() / f"evaluation-{blake2b(what.encode(), digest_size=8).hexdigest()}"
    say(f"index: {documents}, kept in {folder}")
    build_index(
        documents,
        folder,
        embedder,
        factory=retrieval.factory,
        chunk_chars=retrieval.chunk_chars,
        overlap=retrieval.chunk_overlap,
        progress=progress,
    )
    return Retriever(Index.open(folder, embedder.fingerprint), embedder, scorer, config.device.search_by)
