"""The settings of one party: its language model and its documents; of a worker also how much its votes count."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from tandem import plugins
from tandem.config.checks import STRICT, Settings
from tandem.conversation import SYSTEM_PROMPT
from tandem.corpora import AUTO, CORPORA, TOYS, default_index, default_model
from tandem.errors import ConfigError, did_you_mean
from tandem.system.paths import absolute, check_bundled, resolve_model
from tandem.topology import MAX_PARTIES, PARTIES, SERVER, Party

RowLayout = Literal["rows", "joined", "both"]
SearchBy = Literal["hybrid", "dense", "words"]
NO_INDEX = "none"
"""The kind of index that a party without one reports."""
TEMPLATES = ("auto", "chat", "plain")
"""Words for what frames document and question; all else is a path."""
NUM_DOCUMENTS = 2
"""Documents per question that suit a chat model (docs/explanation/evaluation.md)."""
MAX_PRIVACY = 50.0
"""Nats by which documents may change a log probability, at most: e^50 is no bound in practice."""
MIN_WORKERS = 2
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")
"""The form of a worker's name, which its node, its actors and its files bear."""


def _check_template(template: str) -> str:
    if template in TEMPLATES or "/" in template or "." in template:
        return template
    raise ValueError(f"must be {', '.join(TEMPLATES)}, or a path such as ./template.json")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PartyConfig(Settings):
    """One party: its language model and its documents."""

    model: Annotated[str, AfterValidator(check_bundled)] = Field(default=AUTO, min_length=1)
    """language model: "smollm2", "bundled" (a toy), "bundled-drafter", a hub id, a folder, a GGUF file, "ollama:NAME",
    or "auto": smollm2, unless only the toy can be loaded"""
    template: Annotated[str, AfterValidator(_check_template)] = "auto"
    """what frames document and question: "auto", "chat" (the tokenizer's template), "plain", or a file"""
    system_prompt: str = SYSTEM_PROMPT
    """what a chat template tells the model first; empty: nothing"""
    index: str = Field(default=AUTO, min_length=1)
    """index: a folder written by `tandem index`, "langchain:MODULE:FUNCTION", "household" or "bundled", which come with
    Tandem, or "auto": bundled for the toys, else household"""
    watch: bool = False
    """while the party runs, its index follows the files that it was built from (docs/how-to/watch.md)"""
    num_documents: int = Field(default=-1, ge=-1)
    """documents retrieved per question; -1: as many as suit the model, that is 2 (toys: 4, in the cloud 16)"""
    search_by: SearchBy = "hybrid"
    """how documents are found: "dense" (by their vectors), "words" (by the words of the question), or "hybrid" (both,
    fused by rank); a LangChain store has its own way"""
    documents: RowLayout = "rows"
    """how they stand before the model: "rows" (each its own), "joined" (in one), "both" and one bare"""
    privacy: float = Field(default=0.0, ge=0, le=MAX_PRIVACY)
    """device, workers: nats by which documents may change a token's log probability in its votes and drafts
    (docs/explanation/privacy.md); 0: no bound"""
    privacy_budget: float = Field(default=0.0, ge=0)
    """device, workers: nats that all answers together may say of any documents of this user, beyond which tokens are
    drawn without them; 0: no limit"""
    torch_device: str = Field(default="cpu", min_length=1)
    """torch: where the language model runs: cpu, cuda, cuda:1"""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """torch: precision of the language model"""
    engine: str = Field(default="auto", min_length=1)
    """what computes the language model: "llama" (llama.cpp, GGUF files), "torch", the name of a package's engine, or
    "auto": llama for a GGUF file where it is installed, else torch"""
    engine_library: str = ""
    """llama: a build of llama.cpp to use, as a shared library (libllama.so), such as one for a GPU; empty: that of the
    package xllamacpp"""
    gpu_layers: int = Field(default=0, ge=-1)
    """llama: layers of the language model that a GPU computes; -1: all"""
    cache_type: Literal["f16", "q8_0", "q4_0"] = "f16"
    """llama: what keys and values are kept in"""
    num_threads: int = Field(default=1, ge=1)
    """CPU threads of the language model"""
    gpus_per_decoder: float = Field(default=0.0, ge=0)
    """GPUs that Ray gives the decoder, such as 1 or 0.5; 0: none is asked for"""
    kv_store: Literal["disk", "memory", "off"] = "disk"
    """where key-value caches of documents are kept: beside the index, in memory, or nowhere"""
    kv_max_bytes: int = Field(default=1 << 30, ge=0)
    """size of that store in bytes; least recently used entries are evicted first"""
    turns_max_bytes: int = Field(default=1 << 27, ge=0)
    """memory for the caches of earlier turns of conversations, in bytes; 0 keeps none"""

    @property
    def index_folder(self) -> Path | None:
        """The folder of the index; None for documents that come with Tandem, or in the store of a plugin."""
        is_name = self.has_given_documents or plugins.split("store", self.index) is not None
        return None if is_name else Path(self.index)

    @property
    def has_given_documents(self) -> bool:
        """Whether its documents are some that come with Tandem."""
        return self.index in (AUTO, *CORPORA)

    def with_paths(self, folder: Path) -> Self:
        """The same settings with every path absolute; relative ones count from `folder`."""
        own = self.index_folder
        index = self.index if own is None else str(folder / own.expanduser())
        template = self.template if self.template in TEMPLATES else absolute(self.template, folder)
        return replace(self, model=resolve_model(self.model, folder), index=index, template=template)

    def with_names(self, model: str | None = None, toy_documents: int = 4) -> Self:
        """The same settings with a name in the place of every "auto", and a number of documents.

        model: what "auto" is for the model; default: what it is on this machine. toy_documents: how many suit a toy.
        """
        name = (model or default_model()) if self.model == AUTO else self.model
        index = default_index(name) if self.index == AUTO else self.index
        count = self.num_documents
        if count < 0:
            count = toy_documents if name in TOYS else NUM_DOCUMENTS
        return replace(self, model=name, index=index, num_documents=count)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class WorkerConfig(PartyConfig):
    """One worker of mode "federated": a party, and the weight of its votes."""

    weight: float = Field(default=-1.0, ge=-1)
    """fixed weight of its votes, scaled so that all sum to 1; -1: its documents decide, as in dual, or 1 beside a
    worker with a fixed one"""


def check_gpus(parties: Mapping[str, PartyConfig]) -> None:
    """Raise ConfigError if Ray cannot give one of these parties the GPUs that it asks for."""
    for name, party in parties.items():
        gpus = party.gpus_per_decoder
        if gpus > 1 and gpus != int(gpus):
            raise ConfigError(
                f"The setting {name}.gpus_per_decoder must be a whole number or below 1 (got {gpus:g}); Ray shares no "
                "GPU beside a whole one."
            )
        if gpus and party.torch_device == "cpu":
            raise ConfigError(
                f'The setting {name}.gpus_per_decoder is {gpus:g}, but {name}.torch_device is "cpu"; set torch_device '
                'to "cuda", or gpus_per_decoder to 0.'
            )


def check_privacy(parties: Mapping[str, PartyConfig]) -> None:
    """Raise ConfigError if a party bounds what its documents say that has none to protect, or a budget has no bound."""
    for name, party in parties.items():
        if (party.privacy or party.privacy_budget) and name in (Party.CLOUD, SERVER):
            raise ConfigError(
                f"The settings {name}.privacy and privacy_budget are for a device or worker (got {party.privacy:g} and "
                f"{party.privacy_budget:g}); remove them."
            )
        if party.privacy_budget and not party.privacy:
            raise ConfigError(
                f"The setting {name}.privacy_budget is {party.privacy_budget:g}, but {name}.privacy is 0, so a single "
                f"token may exceed it; set {name}.privacy, such as to 2."
            )


def check_workers(
    mode: str, server: PartyConfig, workers: Mapping[str, WorkerConfig], home: str = ""
) -> None:
    """Raise ConfigError, one sentence, unless a server and these workers can answer in mode "federated", and none do
    in another mode.

    home: who is asked; empty: the server.
    """
    if mode != "federated":
        if home:
            raise ConfigError(
                f'The setting decoding.home names who is asked in mode "federated" (got {home!r}), but decoding.mode '
                f'is "{mode}"; remove it.'
            )
        if workers:
            raise ConfigError(
                f'Workers ({", ".join(workers)}) answer in mode "federated", but decoding.mode is "{mode}"; set it to '
                '"federated", or remove them.'
            )
        return
    if not MIN_WORKERS <= len(workers) < MAX_PARTIES:
        names = ", ".join(workers) or "none"
        raise ConfigError(
            f'The mode "federated" needs {MIN_WORKERS} to {MAX_PARTIES - 1} workers (got {names}); name each in a '
            "section of its own, such as [workers.alice]."
        )
    for name in workers:
        if name in (*PARTIES, SERVER) or not NAME.fullmatch(name):
            raise ConfigError(
                f"A worker has a name of letters, digits, _ and -, and is not called device, cloud or server (got "
                f"{name!r}); rename [workers.{name}]."
            )
    if home not in ("", SERVER, *workers):
        raise ConfigError(
            f"The setting decoding.home must be a worker or the server, but it is {home!r}; "
            f"{did_you_mean(home, (SERVER, *workers))}"
        )
    parties: dict[str, PartyConfig] = {
        SERVER: server,
        **{f"workers.{name}": workers[name] for name in workers},
    }
    for section, party in parties.items():
        if party.has_given_documents and party.num_documents:
            raise ConfigError(
                f'There are bundled documents of device and cloud only, but {section}.index is "{party.index}"; name a '
                f"folder that `tandem index` wrote, or set {section}.num_documents to 0."
            )
    if not any(worker.weight for worker in workers.values()):
        raise ConfigError(
            f"The weights of all workers are 0 ({', '.join(workers)}), so nobody has a vote; set one above 0."
        )


def shares_of(workers: Mapping[str, WorkerConfig]) -> tuple[float, ...]:
    """The fixed weights of the workers, scaled to sum 1; empty where documents decide."""
    if all(worker.weight < 0 for worker in workers.values()):
        return ()
    weights = [worker.weight if worker.weight >= 0 else 1.0 for worker in workers.values()]
    return tuple(weight / sum(weights) for weight in weights)
