"""Federated clusters for tests: their settings, and the answers that the draft-free loop gives with the same models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tandem.client.tandem import Tandem
from tandem.config.schema import Config
from tandem.corpora import BUNDLED
from tandem.retrieval import Embedder, build_index
from tandem_lab.quality.workers import LocalWorkers

from .conftest import process_of

PATIENT = ("cluster.start_timeout_s=300",)


def settings_of(folder: Path, *owners: str, server: str = "bundled-drafter") -> tuple[str, ...]:
    """Settings of a federated cluster. owners: "name=corpus" of each worker, with the bundled notes ("device"), pages
    ("cloud"), or no documents ("")."""
    made = ["decoding.mode=federated", f"server.model={server}", *PATIENT]
    for owner in owners:
        name, _, corpus = owner.partition("=")
        if not corpus:
            made.append(f"workers.{name}.num_documents=0")
            continue
        index = folder / corpus
        if not index.exists():
            build_index(BUNDLED / corpus, index, Embedder.load("auto"))
        made += [f"workers.{name}.index={index}", f"workers.{name}.num_documents=4"]
    return tuple(made)


class Stopped:
    """The coordinator of one party, which can be halted for a while; at the end of the block it runs."""

    def __init__(self, rag: Tandem, party: str) -> None:
        self._process = process_of(rag, f"{party}/draft_queue")

    def stop(self) -> None:
        """From now on nothing is heard of it."""
        self._process.suspend()

    def go_on(self) -> None:
        """It runs again, and knows what it knew."""
        self._process.resume()

    def __enter__(self) -> Stopped:
        return self

    def __exit__(self, *_: object) -> None:
        self.go_on()


class Loop:
    """The draft-free loop over the models and documents of a cluster's workers, in this process."""

    def __init__(self, config: Config) -> None:
        self._workers = LocalWorkers(config)

    def answer(
        self,
        question: str,
        seed: int,
        temperature: float,
        max_new_tokens: int = 24,
        present: Callable[[int], Sequence[int]] | None = None,
    ) -> list[int]:
        """The tokens of an answer. present: the voters that are there at a step, by number; None: all."""
        spec = self._workers.make_spec(question, seed, temperature=temperature, max_new_tokens=max_new_tokens)
        return self._workers.answer(spec, present)
