"""All settings of Tandem in one frozen object, from a TOML file, from `section.name=value`, and from code.

Every `Config` that exists has been checked, but paths are not opened here: whoever uses a model or an index finds out
whether it is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import ArgsKwargs

from tandem import toml
from tandem.conversation import SYSTEM_PROMPT
from tandem.decoding import DecodingConfig
from tandem.errors import ConfigError
from tandem.extensions import CodecConfig, SchedulerConfig
from tandem.overrides import parse, replace_settings, to_toml, unknown
from tandem.paths import absolute, check_bundled, resolve, resolve_model
from tandem.presets import expand, take_preset
from tandem.sampling import SamplingParams
from tandem.topology import Party
from tandem.validation import STRICT, Settings, WordOrPath

LANGCHAIN = "langchain:"
"""Prefix of an index or embedder from LangChain: langchain:MODULE:FUNCTION."""
TEMPLATES = WordOrPath(words=("auto", "chat", "plain"), example="./template.json")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PartyConfig(Settings):
    """One party: its language model and its documents."""

    model: Annotated[str, AfterValidator(check_bundled)] = Field(
        default="bundled",
        min_length=1,
        description='language model: "bundled", "bundled-drafter", a hub id, or a path that starts with . / or ~',
    )
    template: Annotated[str, TEMPLATES] = Field(
        default="auto",
        description='what frames document and question: "auto", "chat" (the tokenizer\'s template), "plain", or a file',
    )
    system_prompt: str = Field(
        default=SYSTEM_PROMPT, description="what a chat template tells the model first; empty: nothing"
    )
    index: str = Field(
        default="bundled",
        min_length=1,
        description='index: "bundled", a folder written by `tandem index`, or "langchain:MODULE:FUNCTION"',
    )
    num_documents: int = Field(
        default=4, ge=0, description="documents retrieved per question, one batch row each"
    )
    torch_device: str = Field(
        default="cpu",
        min_length=1,
        description="where the language model runs, in torch's terms: cpu, cuda, cuda:1",
    )
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        default="float32", description="precision of the language model"
    )
    num_threads: int = Field(default=1, ge=1, description="CPU threads of the language model")
    kv_store: Literal["disk", "memory", "off"] = Field(
        default="disk",
        description="where key-value caches of documents are kept: beside the index, in memory, or nowhere",
    )
    kv_max_bytes: int = Field(
        default=1 << 30,
        ge=0,
        description="size of that store in bytes; least recently used entries are evicted first",
    )

    @property
    def index_folder(self) -> Path | None:
        """The folder of the index; None for the bundled index or a LangChain store."""
        is_name = self.index == "bundled" or self.index.startswith(LANGCHAIN)
        return None if is_name else Path(self.index)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RetrievalConfig(Settings):
    """How documents are split, embedded and indexed; the same for both parties."""

    embedder: str = Field(
        default="auto",
        min_length=1,
        description='embedder: "auto", "offline" (extra [offline]), a hub name, a path, or "langchain:MODULE:FUNCTION"',
    )
    factory: str = Field(
        default="auto",
        min_length=1,
        description='kind of new indexes: "auto" by size (docs/explanation/retrieval.md), or a FAISS factory string',
    )
    chunk_chars: int = Field(default=800, ge=1, description="length of a chunk of a document, in characters")
    chunk_overlap: int = Field(default=100, ge=0, description="overlap of neighbouring chunks, in characters")

    @model_validator(mode="after")
    def _check_overlap(self) -> RetrievalConfig:
        if self.chunk_overlap >= self.chunk_chars:
            raise ConfigError(
                f"The setting retrieval.chunk_overlap must be below retrieval.chunk_chars, but they are "
                f"{self.chunk_overlap} and {self.chunk_chars}; lower the overlap."
            )
        return self


@dataclass(frozen=True, kw_only=True, config=STRICT)
class WeightsConfig(Settings):
    """How documents are weighted while the answer grows (DRAGON 4.1)."""

    scorer: str = Field(
        default="embedder",
        min_length=1,
        description='scoring model: "embedder" (cosine), or a cross-encoder by hub name or path',
    )
    scale: float = Field(
        default=10.0,
        gt=0,
        description="R(d, x) is this times the score: 10 suits a cosine, 1 a cross-encoder's logit",
    )
    interval: int = Field(
        default=3, ge=0, description="tokens between two estimates of relevance; 0: one for the whole answer"
    )
    lag: int = Field(default=1, ge=0, description="tokens between an estimate and its first use")
    momentum: float = Field(
        default=0.0, ge=0, lt=1, description="share of the previous estimate that is kept"
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class LinkConfig(Settings):
    """The data plane between the two parties."""

    data_plane: Literal["socket", "ray"] = Field(
        default="socket", description="what carries drafts and verdicts"
    )
    on_peer_loss: Literal["continue", "wait", "fail"] = Field(
        default="continue", description="what the device does without the cloud"
    )
    peer_loss_margin_s: float = Field(
        default=1.0, ge=0, description="silence allowed beyond max(4 RTT, 0.5 s), in seconds"
    )
    host: str = Field(
        default="", description="address at which a party awaits its peer; empty: the node's own"
    )
    port: int = Field(
        default=0, ge=0, le=65535, description="port at which a party awaits its peer; 0: any free one"
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ClusterConfig(Settings):
    """The Ray cluster underneath."""

    address: str = Field(default="", description="address of a running cluster; empty: start one")
    namespace: str = Field(default="tandem", min_length=1, description="Ray namespace of the actors")
    start_timeout_s: float = Field(
        default=120.0, gt=0, description="longest wait for nodes, actors and models, in seconds"
    )
    query_timeout_s: float = Field(default=120.0, gt=0, description="longest wait for an answer, in seconds")
    max_sessions: int = Field(
        default=32, ge=1, description="queries open at once at a party, at most; others wait in order"
    )
    light_actors: Literal["apart", "together"] = Field(
        default="apart",
        description="aggregator, profiler and scheduler: each in a process, or in the draft queue's",
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config(Settings):
    """Everything that can be set. Raises ConfigError if a value is wrong."""

    device: PartyConfig = PartyConfig()
    cloud: PartyConfig = PartyConfig(num_documents=16)
    retrieval: RetrievalConfig = RetrievalConfig()
    sampling: SamplingParams = SamplingParams()
    decoding: DecodingConfig = DecodingConfig()
    weights: WeightsConfig = WeightsConfig()
    codec: CodecConfig = CodecConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    link: LinkConfig = LinkConfig()
    cluster: ClusterConfig = ClusterConfig()

    @model_validator(mode="after")
    def _check_codec(self) -> Config:
        self.codec.check_rule(self.decoding.draft_rule)
        return self

    def party(self, party: Party) -> PartyConfig:
        """The settings of one party."""
        return self.device if party is Party.DEVICE else self.cloud

    def seen_by(self, party: Party) -> Config:
        """The settings that the actors of one party receive: without the other's model, index and paths."""
        hidden = PartyConfig()
        return replace(self, cloud=hidden) if party is Party.DEVICE else replace(self, device=hidden)

    @classmethod
    def load(cls, path: Path | str | None = None, overrides: Sequence[str] = ()) -> Config:
        """The defaults, changed by a preset, then by a TOML file, then by overrides ("section.name=value").

        File or overrides name the preset (`preset = "dragon"`, "preset=dragon"; see `tandem.presets`). Relative paths
        count from the file's folder, those in overrides from the working directory; both become absolute, so that
        every process understands them. Raises ConfigError.
        """
        preset, others = take_preset(overrides)
        file = None if path is None else Path(path).expanduser().absolute()
        values = expand({} if file is None else toml.read(file), preset)
        config = replace_settings(cls(), values).with_paths(file.parent if file else Path.cwd())
        return replace_settings(config, parse(others, config)).with_paths(Path.cwd())

    def with_paths(self, folder: Path) -> Config:
        """The same settings with every path absolute; relative ones count from `folder`."""
        return replace(
            self,
            device=_party_with_paths(self.device, folder),
            cloud=_party_with_paths(self.cloud, folder),
            retrieval=replace(self.retrieval, embedder=resolve(self.retrieval.embedder, folder)),
            weights=replace(self.weights, scorer=resolve(self.weights.scorer, folder)),
        )

    def to_json(self) -> str:
        """For the control plane; `from_json` gives it back."""
        return _JSON.dump_json(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Config:
        """Inverse of `to_json`, as strict as a file. Raises ConfigError."""
        try:
            return _JSON.validate_json(text)
        except ValidationError:
            raise ConfigError(
                f"Settings must be a JSON object, but they begin {text[:20]!r}; use to_json."
            ) from None

    def to_toml(self, *, only_changed: bool = False) -> str:
        """A file that `load` reads, each setting with its meaning; only_changed: defaults as comments."""
        return to_toml(self, only_changed=only_changed)

    @model_validator(mode="before")
    @classmethod
    def _check_sections(cls, values: Any) -> Any:
        """Unknown sections are named here, with their new names if they were split or renamed."""
        names = values.kwargs if isinstance(values, ArgsKwargs) else values
        for name in names if isinstance(names, dict) else ():
            if name not in {field.name for field in fields(cls)}:
                raise unknown(name, cls())
        return values


_JSON = TypeAdapter(Config)


def _party_with_paths(party: PartyConfig, folder: Path) -> PartyConfig:
    own = party.index_folder
    index = party.index if own is None else str(folder / own.expanduser())
    is_file = TEMPLATES.is_path(party.template)
    template = absolute(party.template, folder) if is_file else party.template
    return replace(party, model=resolve_model(party.model, folder), index=index, template=template)
