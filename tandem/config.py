"""All settings of Tandem, in one frozen object: from one TOML file, from `section.name=value`, or from code.

Every `Config` that exists has been checked. Knows names, types and ranges; nothing of models, indexes or nodes,
so whether a path leads anywhere is found out by whoever opens it.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from tandem import settings
from tandem.errors import ConfigError
from tandem.settings import setting
from tandem.topology import Party

LANGCHAIN = "langchain:"
"""What an index or embedder of LangChain's begins with: langchain:MODULE:FUNCTION."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartyConfig:
    """One side: its language model and its documents."""

    model: str = setting(
        "bundled", 'language model: "bundled", a hub id, or a path that starts with . / or ~'
    )
    index: str = setting(
        "bundled", 'index: "bundled", the folder that `tandem index` wrote, or "langchain:MODULE:FUNCTION"'
    )
    num_documents: int = setting(4, "documents retrieved per question, one batch row each", at_least=0)
    torch_device: str = setting("cpu", "where the language model runs, as torch names it: cpu, cuda, cuda:1")
    dtype: Literal["float32", "bfloat16", "float16"] = setting("float32", "precision of the language model")
    num_threads: int = setting(1, "CPU threads of the language model", at_least=1)
    kv_store: Literal["disk", "memory", "off"] = setting(
        "disk", "where caches of documents are kept: beside the index, in memory, or nowhere"
    )
    kv_max_bytes: int = setting(
        1 << 30, "size of that store, in bytes; what was used least recently goes first", at_least=0
    )

    @property
    def index_folder(self) -> Path | None:
        """The folder of the index; None: the bundled one, or a LangChain store."""
        is_name = self.index == "bundled" or self.index.startswith(LANGCHAIN)
        return None if is_name else Path(self.index)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalConfig:
    """How documents are cut, embedded and indexed; alike on both sides."""

    embedder: str = setting(
        "auto",
        'embedder: "auto", "offline" (extra [offline]), a hub name, a path, or "langchain:MODULE:FUNCTION"',
    )
    factory: str = setting(
        "auto", 'kind of new indexes: "auto" by their size (docs/retrieval.md), or a FAISS factory string'
    )
    chunk_chars: int = setting(800, "length of a chunk of a document, in characters", at_least=1)
    chunk_overlap: int = setting(100, "what neighbouring chunks share, in characters", at_least=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationConfig:
    """How an answer is drafted and decided; each can be set per query."""

    temperature: float = setting(0.0, "divides the logits; 0 takes the most probable token", at_least=0)
    max_new_tokens: int = setting(48, "longest answer, in tokens", at_least=1)
    stop: tuple[str, ...] = setting((), "texts that end an answer")
    draft_rule: Literal["coupled", "algorithm1"] = setting("coupled", "how drafts are drawn and verified")
    placement: Literal["device", "cloud", "greedy", "mirror"] = setting(
        "mirror", "who aggregates; mirror is both, greedy moves it where a token costs less"
    )
    synchronous: bool = setting(
        False, "no draft before the previous token is committed (the token-wise loop)"
    )
    max_window: int = setting(16, "drafts past the last committed token, at most", at_least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsConfig:
    """How documents are weighed while the answer grows (DRAGON 4.1)."""

    scorer: str = setting(
        "embedder", 'scoring model: "embedder" (cosine), or a cross-encoder by hub name or path'
    )
    scale: float = setting(
        10.0, "R(d, x) is this times the score: 10 suits a cosine, 1 a cross-encoder's logit", above=0
    )
    interval: int = setting(
        3, "tokens between two estimates of relevance; 0: static, one for the whole answer", at_least=0
    )
    lag: int = setting(1, "tokens between an estimate and its first use", at_least=0)
    momentum: float = setting(0.0, "share of the previous estimate that is kept", at_least=0, below=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecConfig:
    """How laws are compressed before a draft is drawn."""

    name: Literal["top_p"] = setting("top_p", "codec")
    p: float = setting(0.8, "probability that the nucleus holds at least", above=0, at_most=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkConfig:
    """The data plane between the two sides."""

    data_plane: Literal["socket", "ray"] = setting("socket", "what carries drafts and verdicts")
    on_peer_loss: Literal["continue", "wait", "fail"] = setting(
        "continue", "what the device does without the cloud"
    )
    peer_loss_margin_s: float = setting(
        1.0, "silence allowed beyond max(4 RTT, 0.5 s), in seconds", at_least=0
    )
    host: str = setting(
        "", "address at which a side awaits its peer; empty: the node's own", may_be_empty=True
    )
    port: int = setting(0, "port at which a side awaits its peer; 0: any free one", at_least=0, at_most=65535)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """The Ray cluster underneath."""

    address: str = setting("", "address of a running cluster; empty: start one", may_be_empty=True)
    namespace: str = setting("tandem", "Ray namespace of the actors")
    start_timeout_s: float = setting(120.0, "longest wait for nodes, actors and models, in seconds", above=0)
    query_timeout_s: float = setting(120.0, "longest wait for an answer, in seconds", above=0)
    max_sessions: int = setting(32, "queries open at once on a side, at most; others are refused", at_least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything that can be set. Raises ConfigError if a value is wrong."""

    device: PartyConfig = PartyConfig()
    cloud: PartyConfig = PartyConfig(num_documents=16)
    retrieval: RetrievalConfig = RetrievalConfig()
    generation: GenerationConfig = GenerationConfig()
    weights: WeightsConfig = WeightsConfig()
    codec: CodecConfig = CodecConfig()
    link: LinkConfig = LinkConfig()
    cluster: ClusterConfig = ClusterConfig()

    def __post_init__(self) -> None:
        settings.check(self)
        _check_pairs(self)

    def party(self, party: Party) -> PartyConfig:
        """The settings of one side."""
        return self.device if party is Party.DEVICE else self.cloud

    def seen_by(self, party: Party) -> Config:
        """What the actors of one side are told: nothing of the other's model, index and paths."""
        hidden = PartyConfig()
        return replace(self, cloud=hidden) if party is Party.DEVICE else replace(self, device=hidden)

    @classmethod
    def load(cls, path: Path | str | None = None, overrides: Sequence[str] = ()) -> Config:
        """The defaults, changed by a TOML file, then by overrides ("section.name=value").

        Relative paths count from the file's folder, those in overrides from the working directory; both are
        made absolute, so that every process understands them. Raises ConfigError.
        """
        config = cls()
        if path is not None:
            where = Path(path).expanduser().absolute()
            config = _with_paths(settings.updated(config, _read(where)), where.parent)
        changes: dict[str, dict[str, Any]] = {}
        for section, name, value in (settings.assignment(text, cls) for text in overrides):
            changes.setdefault(section, {})[name] = value
        return _with_paths(settings.updated(config, changes), Path.cwd())

    def to_json(self) -> str:
        """For the control plane; `from_json` gives it back."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Config:
        """Inverse of `to_json`, as strict as a file. Raises ConfigError."""
        try:
            values = json.loads(text)
        except ValueError:
            raise ConfigError(
                f"Settings must be a JSON object, but they begin {text[:20]!r}; use to_json."
            ) from None
        return settings.updated(cls(), values)

    def to_toml(self) -> str:
        """As a file that `load` reads, each setting with its meaning."""
        return settings.to_toml(self)


def _check_pairs(config: Config) -> None:
    """What no setting can say alone."""
    if config.generation.placement == "mirror" and config.generation.draft_rule != "coupled":
        raise ConfigError(
            'The placement "mirror" needs coupled drafts, but generation.draft_rule is '
            f'"{config.generation.draft_rule}"; set it to "coupled", or the placement to "device" or "cloud".'
        )
    if config.retrieval.chunk_overlap >= config.retrieval.chunk_chars:
        raise ConfigError(
            f"The setting retrieval.chunk_overlap must be below retrieval.chunk_chars, but they are "
            f"{config.retrieval.chunk_overlap} and {config.retrieval.chunk_chars}; lower the overlap."
        )


def _read(path: Path) -> dict[str, Any]:
    """The content of a TOML file."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"The settings must be in a TOML file, but {path} does not exist; check the path."
        ) from None
    except OSError as error:
        raise ConfigError(
            f"The settings in {path} cannot be read ({error.strerror}); check its rights."
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"The settings must be UTF-8 text, but {path} is not; save it as UTF-8.") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"The settings must be TOML, but {path} is not ({error}); correct that line."
        ) from None


def _with_paths(config: Config, folder: Path) -> Config:
    """The same settings with every path absolute; relative ones count from `folder`."""
    return replace(
        config,
        device=_party_with_paths(config.device, folder),
        cloud=_party_with_paths(config.cloud, folder),
        retrieval=replace(config.retrieval, embedder=_path(config.retrieval.embedder, folder)),
        weights=replace(config.weights, scorer=_path(config.weights.scorer, folder)),
    )


def _party_with_paths(party: PartyConfig, folder: Path) -> PartyConfig:
    own = party.index_folder
    index = party.index if own is None else str(folder / own.expanduser())
    return replace(party, model=_path(party.model, folder), index=index)


def _path(name: str, folder: Path) -> str:
    """A name that is plainly a path, made absolute; a hub id stays."""
    is_path = name in (".", "..") or name.startswith(("./", "../", "/", "~"))
    return str((folder / Path(name).expanduser()).resolve()) if is_path else name
