"""Federated clusters for tests: their settings, and the answers that the draft-free loop gives with the same models."""

from __future__ import annotations

from pathlib import Path

from tandem.config.schema import Config
from tandem.corpora import BUNDLED
from tandem.plugins.embedders import Embedder
from tandem.retrieval import build_index
from tandem_lab.quality.workers import LocalWorkers


def settings_of(folder: Path, *owners: str) -> tuple[str, ...]:
    """Settings of a federation. owners: "name=corpus" of each worker, with the bundled notes ("device") or pages
    ("cloud")."""
    made = ["decoding.mode=federated", "server.model=bundled-drafter", "cluster.start_timeout_s=300"]
    for owner in owners:
        name, _, corpus = owner.partition("=")
        index = folder / corpus
        if not index.exists():
            build_index(BUNDLED / corpus, index, Embedder.load("auto"))
        made += [f"workers.{name}.index={index}", f"workers.{name}.num_documents=4"]
    return tuple(made)


class Loop:
    """The draft-free loop over the models and documents of a cluster's workers, in this process."""

    def __init__(self, config: Config) -> None:
        self._workers = LocalWorkers(config)

    def answer(self, question: str, seed: int, temperature: float, max_new_tokens: int = 24) -> list[int]:
        """The tokens of an answer."""
        spec = self._workers.make_spec(question, seed, temperature=temperature, max_new_tokens=max_new_tokens)
        return self._workers.answer(spec)
