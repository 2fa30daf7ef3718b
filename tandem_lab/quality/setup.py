"""Loads what an evaluation needs of the settings: both sides' models, indexes and scoring model, in this process.

Knows settings and files; nothing of methods, and nothing of Ray.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tandem.actors.loading import engine_key, load_embedder_and_scorer, load_engine
from tandem.codecs import Codec, codec_of
from tandem.config.schema import Config
from tandem.engine.engine import Engine
from tandem.engine.kv import MemoryStore
from tandem.retrieval.retriever import DocumentSearch, open_retriever
from tandem.topology import PARTIES, Party
from tandem_lab.quality.pieces import in_common

Say = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Parties:
    """Both sides, ready to be asked."""

    engines: Mapping[Party, Engine]  # one object for both where the settings are equal
    retrievers: Mapping[Party, DocumentSearch]
    codec: Codec


def load(config: Config, say: Say = lambda line: None) -> Parties:
    """Both sides of `config`. say: a line for each stage. Raises TandemError."""
    say(f"embedder: loading {config.retrieval.embedder}")
    embedder, scorer = load_embedder_and_scorer(config, num_threads=config.device.num_threads)
    retrievers = {party: open_retriever(party, config, embedder, scorer) for party in PARTIES}
    return Parties(load_engines(config, say), retrievers, codec_of(config.codec))


def load_engines(config: Config, say: Say = lambda line: None) -> Mapping[Party, Engine]:
    """The language models of both sides, with caches of documents in memory, since every method uses the same ones.

    Where their vocabularies differ, they answer in pieces.
    """
    loaded: dict[tuple[object, ...], Engine] = {}
    for chosen in (config.device, config.cloud):
        if (key := engine_key(chosen)) not in loaded:
            say(f"model: loading {chosen.model}")
            loaded[key] = load_engine(chosen)
            loaded[key].caches.store = MemoryStore(chosen.kv_max_bytes)
    return in_common({party: loaded[engine_key(config.party(party))] for party in PARTIES})
