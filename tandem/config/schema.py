"""All settings of Tandem in one frozen object, from a TOML file, from `section.name=value`, and from code.

The `[sampling]` section of the settings, the options of `Tandem.query` and of the command line, what travels in the
spec of a session, and the documentation all follow from the fields below. Whatever changes a distribution is applied
by `tandem.aggregation.distributions`.

Every `Config` that exists has been checked, but paths are not opened here: whoever uses a model or an index finds out
whether it is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass
from typing_extensions import TypedDict

from tandem.config.checks import STRICT, Settings, Texts, as_toml, plugin_or, settings_of
from tandem.config.extensions import LENGTH_POLICIES, PLACEMENTS, CodecConfig, SchedulerConfig, is_extension
from tandem.config.files import (
    expand,
    parse_overrides,
    read_toml,
    replace_settings,
    take_preset,
    walk,
    write_toml,
)
from tandem.config.parties import PartyConfig as PartyConfig
from tandem.config.parties import WorkerConfig, check_gpus, check_privacy, check_workers
from tandem.corpora import TOYS, default_model
from tandem.errors import ConfigError, did_you_mean
from tandem.system.paths import resolve
from tandem.topology import PAIR, PARTIES, SERVER, Party, Topology, star

GRAMMARS = ("json_schema", "regex", "lark")
"""Kinds of grammar that an answer can follow."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SamplingParams(Settings):
    """How an answer is sampled. Both parties apply it to their own distribution, before it is compressed."""

    temperature: float = Field(default=0.0, ge=0)
    """divides the logits; 0 takes the most probable token"""
    top_k: int = Field(default=0, ge=0)
    """keeps the k most probable tokens; 0: all"""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """keeps the fewest most probable tokens that have this probability together; 1: all"""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """drops tokens below this share of the largest probability; 0: none"""
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    """is taken from the logits of tokens that the answer has already"""
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    """is taken from a token's logit for each time that the answer has it already"""
    max_new_tokens: int = Field(default=512, ge=1)
    """longest answer, in tokens; it ends earlier where a model's context does"""
    stop: Texts = ()
    """text that ends an answer, or a list of them"""

    def without_end(self) -> SamplingParams:
        """These options without what only ends an answer: equal for two that give the same distributions."""
        return replace(self, max_new_tokens=1, stop=())


class SamplingOptions(TypedDict, total=False):
    """The fields of `SamplingParams` as options of one query; None: as configured."""

    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    max_new_tokens: int | None
    stop: str | list[str] | tuple[str, ...] | None


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DevicesConfig(Settings):
    """Limits of a cloud for each of the devices that join it (`tandem cloud serve`)."""

    max_answer_tokens: ClassVar[int] = 4096  # longest answer
    max_devices: ClassVar[int] = 64  # connected at once
    max_bytes_per_s: ClassVar[int] = 4 << 20  # that one device may send; what exceeds them waits
    max_queries: int = Field(default=4, ge=1)
    """queries that one device asks at once, at most; the rest waits at the device"""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class HttpConfig(Settings):
    """The HTTP server (`tandem serve`)."""

    allowed_hosts: Texts = ()
    """further names by which a server without an API key may be asked, or a list of them"""


DraftRuleName = Literal["auto", "lottery", "coupled", "algorithm1", "rejection"]
MODES_OF_RULES = {"lottery": ("dual", "federated"), "algorithm1": ("dual",), "rejection": ("speculative",)}
"""Where a draft rule is for some modes alone."""
ModeName = Literal["dual", "speculative", "federated"]
Pacing = Literal["stop_and_wait", "pipelined", "cloud_goes_on"]
StepsWhen = Literal["auto", "never", "always"]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DecodingConfig(Settings):
    """How tokens are drafted and decided; each setting can be overridden per query."""

    mode: ModeName = "dual"
    """whose models answer: both (dual), the cloud's (speculative), or those of many workers (federated)"""
    draft_rule: DraftRuleName = "auto"
    """how a token is drawn from several votes: as the draft of one party (lottery), from the mixture (coupled), by
    algorithm1 (dual) or rejection (speculative); auto: lottery above temperature 0, else coupled"""
    placement: Annotated[str, plugin_or("policy", *PLACEMENTS)] = "mirror"
    """who aggregates: one party (device, cloud), both (mirror), whoever makes a token cheaper (greedy), or a policy
    (MODULE:FUNCTION)"""
    max_window: int = Field(default=16, ge=1)
    """most drafts past the last committed token; 1: each waits for the one before (the token-wise loop)"""
    max_proposal: int = Field(default=4, ge=0, le=16)
    """speculative, federated: tokens of a proposal, at most; 0: each is asked for, or the cloud streams"""
    length_policy: Annotated[str, plugin_or("policy", *LENGTH_POLICIES)] = "fixed"
    """speculative, federated: proposals of max_proposal tokens (fixed), or of as many as a policy says (best,
    last_accepted, double_dqn, MODULE:FUNCTION)"""
    uplink_budget_bits: int = Field(default=0, ge=0)
    """speculative: bits of the ids and distributions of a proposal, at most; 0: no limit"""
    pacing: Pacing = "cloud_goes_on"
    """speculative, federated: one proposal at a time, many, or many while the cloud continues alone"""
    patience_s: float = Field(default=inf, gt=0, allow_inf_nan=True)
    """dual: how long a step waits for the cloud's vote, in seconds, before the device decides it alone; inf: without
    limit"""
    home: str = ""
    """federated: the worker at which the question is asked and the answer streams; empty: the server"""
    steps: StepsWhen = "auto"
    """dual: whether the device first says which name the documents of both share (docs/explanation/steps.md)"""

    @model_validator(mode="after")
    def _check_rule(self) -> DecodingConfig:
        belongs = MODES_OF_RULES.get(self.draft_rule, (self.mode,))
        if self.mode not in belongs:
            raise ConfigError(
                f'The draft rule "{self.draft_rule}" is for mode "{" or ".join(belongs)}", but decoding.mode is '
                f'"{self.mode}"; set the rule to "auto", or change the mode.'
            )
        if self.mode == "dual" and self.placement == "mirror" and self.draft_rule == "algorithm1":
            raise ConfigError(
                'The placement "mirror" needs drafts with shared noise, but decoding.draft_rule is "algorithm1"; set '
                'it to "auto", or the placement to "device" or "cloud".'
            )
        if self.patience_s < inf and (self.mode != "dual" or self.placement not in ("device", "mirror")):
            raise ConfigError(
                f"With decoding.patience_s (got {self.patience_s:g}) the device decides every step, but decoding.mode "
                f'is "{self.mode}" and decoding.placement "{self.placement}"; set them to "dual" and "device".',
                option="patience_s",
            )
        return self

    @property
    def effective_placement(self) -> str:
        """The placement, but the device's with limited patience: what one decides alone, both cannot (`mirror`)."""
        return "device" if self.patience_s < inf else self.placement


def placement_of(decoding: DecodingConfig) -> str:
    """The decider, for display: the cloud in mode speculative, the server in mode federated."""
    if decoding.mode == "dual":
        return decoding.effective_placement
    return SERVER if decoding.mode == "federated" else "cloud"


class DecodingOptions(TypedDict, total=False):
    """The fields of `DecodingConfig` as options of one query; None: as configured."""

    mode: ModeName | None
    draft_rule: DraftRuleName | None
    placement: str | None
    max_window: int | None
    max_proposal: int | None
    length_policy: str | None
    uplink_budget_bits: int | None
    pacing: Pacing | None
    patience_s: float | None
    home: str | None
    steps: StepsWhen | None


OnPeerLoss = Literal["continue", "wait", "fail"]


MULTILINGUAL, E5_NAME = "multilingual", "intfloat/multilingual-e5-small"
"""What settings call the embedder of many languages, and its name on the hub."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RetrievalConfig(Settings):
    """How documents are split, embedded, indexed and found; the same for both parties."""

    embedder: str = Field(default="auto", min_length=1)
    """embedder: "auto", "offline" (extra [offline]), "multilingual" (extra [multilingual]), a hub name, a path, or
    "langchain:MODULE:FUNCTION" """
    factory: str = Field(default="auto", min_length=1)
    """kind of indexes: "auto" by size (docs/explanation/retrieval.md), "Flat", or like "IVF512,Flat" """
    chunk_chars: int = Field(default=800, ge=1)
    """length of a chunk of a document, in characters"""

    @property
    def chunk_overlap(self) -> int:
        """Characters that neighbouring chunks share."""
        return self.chunk_chars // 8

    @property
    def build_options(self) -> dict[str, Any]:
        """How documents are cut and indexed, as options of `build_index`."""
        return {"factory": self.factory, "chunk_chars": self.chunk_chars, "overlap": self.chunk_overlap}


@dataclass(frozen=True, kw_only=True, config=STRICT)
class WeightsConfig(Settings):
    """How documents are weighted, before the answer and while it grows (`tandem.aggregation.document_weights`)."""

    scorer: str = Field(default="embedder", min_length=1)
    """scoring model: "embedder" (cosine), or a cross-encoder by hub name or path"""
    question: float = Field(default=-1.0, ge=-1, le=100)
    """how much the question counts as evidence before the answer; -1: 1, and 0 for the toys"""
    evidence: float = Field(default=1.0, ge=0, le=100)
    """how much it counts how well a document predicted question and answer so far; 0: only scores count"""
    memory: ClassVar[float] = 0.8  # what is kept of this evidence at each token
    max_peer_share: float = Field(default=1.0, gt=0, le=1)
    """most that the vote of another party than the one that was asked counts, where documents weigh; 1: as much as it
    says"""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class LinkConfig(Settings):
    """The data plane between the two parties."""

    on_peer_loss: OnPeerLoss = "continue"
    """what the device does without the cloud"""
    peer_loss_margin_s: float = Field(default=1.0, ge=0)
    """silence allowed beyond max(4 RTT, 0.5 s), in seconds"""
    # How long a peer that is heard may owe what the answer needs, at least; before its first vote, or where it was slow
    # before, up to four times as long.
    peer_stall_s: ClassVar[float] = 15.0
    host: str = ""
    """where a party awaits its peer; empty: its node's address"""
    port: int = Field(default=0, ge=0, le=65535)
    """port at which a party awaits its peer; 0: any free one"""
    allow_plain: bool = False
    """`tandem up` without TLS or token, as within a VPN"""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ClusterConfig(Settings):
    """The runtime of the actors: the process that asks, or a Ray cluster."""

    runtime: Annotated[str, plugin_or("runtime", "auto", "inline")] = "auto"
    """what runs the actors: inline, the process that asks; ray, processes of a Ray cluster; or the plugin of a package;
    auto: Ray where a cluster runs here, else inline"""
    namespace: ClassVar[str] = "tandem"  # of the actors, in Ray's terms
    start_timeout_s: float = Field(default=300.0, gt=0)
    """longest wait for nodes, actors and models, in seconds"""
    query_timeout_s: float = Field(default=120.0, gt=0)
    """longest silence of an answer, in seconds; then it ends with what it has"""
    max_sessions: int = Field(default=32, ge=1)
    """queries open at once at a party, at most; others wait in order"""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config(Settings):
    """Everything that can be set. Raises ConfigError if a value is wrong."""

    device: PartyConfig = PartyConfig()
    cloud: PartyConfig = PartyConfig()
    server: PartyConfig = PartyConfig(num_documents=0)  # mode "federated": it drafts
    workers: dict[str, WorkerConfig] = Field(
        default_factory=dict
    )  # mode "federated": they vote, in this order
    retrieval: RetrievalConfig = RetrievalConfig()
    sampling: SamplingParams = SamplingParams()
    decoding: DecodingConfig = DecodingConfig()
    weights: WeightsConfig = WeightsConfig()
    codec: CodecConfig = CodecConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    link: LinkConfig = LinkConfig()
    cluster: ClusterConfig = ClusterConfig()
    devices: DevicesConfig = DevicesConfig()
    http: HttpConfig = HttpConfig()

    @model_validator(mode="after")
    def _check_together(self) -> Config:
        check_gpus(self._by_party())
        check_privacy(self._by_party())
        policies = self.decoding.placement, self.decoding.length_policy
        if self.scheduler.parameters and not any(map(is_extension, policies)):
            raise ConfigError(
                "scheduler.parameters is for a policy of your own, but decoding.placement is {!r}, "
                "decoding.length_policy is {!r} and the table holds {}; remove it.".format(
                    *policies, ", ".join(self.scheduler.parameters)
                )
            )
        check_workers(self.decoding.mode, self.server, self.workers, self.decoding.home)
        return self

    @property
    def score_scale(self) -> float:
        """The factor that makes a document's score a log weight: a cross-encoder's logit is one already, and cosines of
        E5 lie closer to each other than those of MiniLM (docs/explanation/retrieval.md)."""
        if self.weights.scorer != "embedder":
            return 1.0
        return 40.0 if self.retrieval.embedder in (MULTILINGUAL, E5_NAME) else 10.0

    def require_cluster(self, what: str) -> None:
        """Raise ConfigError where no Ray cluster is used. what: needs one, as the subject of the sentence."""
        if self.cluster.runtime == "inline":
            raise ConfigError(
                f'{what} needs a Ray cluster, but cluster.runtime is "inline"; use `tandem ask --runtime inline`, '
                '`tandem device --join LINK` or Tandem.launch, or set cluster.runtime to "auto".'
            )

    def with_runtime(self, *, on_ray: bool) -> Config:
        """The same settings for parties that are started here, with a runtime in the place of "auto".

        on_ray: something is asked for that only Ray has.
        """
        runtime = self.cluster.runtime
        if runtime == "auto":
            runtime = "ray" if on_ray else "inline"
        return replace(self, cluster=replace(self.cluster, runtime=runtime))

    @property
    def is_federated(self) -> bool:
        """Whether a server and workers answer, instead of device and cloud."""
        return self.decoding.mode == "federated"

    @property
    def topology(self) -> Topology:
        """The parties of the cluster, and who connects to whom."""
        return star(SERVER, tuple(self.workers)) if self.is_federated else PAIR

    @property
    def parties(self) -> tuple[str, ...]:
        """The parties of the cluster, in their order."""
        return self.topology.parties

    @property
    def holders(self) -> tuple[str, ...]:
        """The parties that have documents: their own, or given ones where some are asked for."""
        return tuple(
            name
            for name in self.parties
            if not self.party(name).has_given_documents
            or (self.party(name).num_documents and not self.is_federated)
        )

    @property
    def is_alone(self) -> bool:
        """Whether device and cloud are one machine's device: the cloud has no documents, and the device's model."""
        alike = self.cloud.model == self.device.model and self.cloud.template == self.device.template
        return alike and self.decoding.mode == "dual" and Party.CLOUD not in self.holders

    def party(self, party: str) -> PartyConfig:
        """The settings of one party. Raises ConfigError if there is none of that name."""
        parties = self._by_party()
        if party not in parties:
            raise ConfigError(f"There is no party {party!r}; {did_you_mean(party, list(parties))}")
        return parties[party]

    def seen_by(self, party: str) -> Config:
        """The settings that the actors of one party receive: without the others' models, indexes and paths."""
        hidden = WorkerConfig(num_documents=0)
        workers = {name: own if name == party else hidden for name, own in self.workers.items()}
        return replace(
            self,
            device=self.device if party == Party.DEVICE else PartyConfig(),
            cloud=self.cloud if party == Party.CLOUD else PartyConfig(),
            server=self.server if party == SERVER else PartyConfig(num_documents=0),
            workers=workers,
        )

    def _by_party(self) -> dict[str, PartyConfig]:
        return {**{name: getattr(self, name) for name in (*PARTIES, SERVER)}, **self.workers}

    @classmethod
    def load(cls, path: Path | str | None = None, overrides: Sequence[str] = ()) -> Config:
        """The defaults, changed by a preset, then by a TOML file, then by overrides ("section.name=value").

        File or overrides name the preset (`preset = "dragon"`, "preset=dragon"; see `presets`). Relative paths
        count from the file's folder, those in overrides from the working directory; both become absolute, so that
        every process understands them, and what is "auto" gets a name. Raises ConfigError.
        """
        preset, others = take_preset(overrides)
        file = None if path is None else Path(path).expanduser().absolute()
        values = expand({} if file is None else read_toml(file), preset)
        config = replace_settings(cls(), values).with_paths(file.parent if file else Path.cwd())
        return replace_settings(config, parse_overrides(others, config)).resolve(Path.cwd())

    def resolve(self, folder: Path) -> Config:
        """The same settings as they are used: `with_names`, then `with_paths`."""
        return self.with_names().with_paths(folder)

    def with_names(self) -> Config:
        """The same settings with the name of a model and of documents in the place of every "auto".

        A model is the one that the environment variable TANDEM_MODEL names; without it "smollm2", or "bundled" where
        only that can be loaded. The server's is the first worker's, and for the toys their drafter. The number of
        documents, and how much a question's likelihood counts, follow from the models.
        """
        workers = {name: worker.with_names() for name, worker in self.workers.items()}
        device, cloud = self.device.with_names(), self.cloud.with_names(toy_documents=16)
        voters = workers.values() if workers else (device, cloud)
        question = self.weights.question
        if question < 0:  # the toys have never read a question that a document makes likely
            question = 0.0 if all(voter.model in TOYS for voter in voters) else 1.0
        voter = next((worker.model for worker in workers.values()), default_model())
        return replace(
            self,
            device=device,
            cloud=cloud,
            weights=replace(self.weights, question=question),
            server=self.server.with_names("bundled-drafter" if voter in TOYS else voter),
            workers=workers,
        )

    def with_paths(self, folder: Path) -> Config:
        """The same settings with every path absolute; relative ones count from `folder`."""
        return replace(
            self,
            **{name: getattr(self, name).with_paths(folder) for name in (*PARTIES, SERVER)},
            workers={name: own.with_paths(folder) for name, own in self.workers.items()},
            retrieval=replace(self.retrieval, embedder=resolve(self.retrieval.embedder, folder)),
            weights=replace(self.weights, scorer=resolve(self.weights.scorer, folder)),
        )

    def to_json(self) -> str:
        """The settings as JSON, for the control plane; `from_json` gives them back."""
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
        return write_toml(self, only_changed=only_changed)


_JSON = TypeAdapter(Config)


def checked_config(config: Config | None) -> Config:
    """The settings, or all defaults, with a name in the place of every "auto".

    Raises ConfigError for what is none, such as the name of a file.
    """
    if config is not None and not isinstance(config, Config):
        raise ConfigError(
            f"The settings must be a Config (got {config!r:.80}); use Config.load(FILE) or Config(...)."
        )
    return (config or Config()).with_names()


SHARED = ("codec.", "retrieval.embedder", "weights.scorer")
"""Beginnings of keys that count when either party starts."""
ASKED = ("num_documents", "weight")
"""Settings of a party that travel with each question."""
ALSO_LOADED = {("codec.name", as_toml("auto")): as_toml("top_p")}
"""Values that a question can have although another one is running: a party with "auto" has loaded top_p too."""


def start_settings(config: Config, party: str) -> dict[str, str]:
    """The settings of a start that were changed from their defaults, as TOML values by key."""
    defaults = _defaults(config, party)
    return {key: value for key, value in _values(config, party).items() if value != defaults[key]}


def explain_ignored(config: Config, started: Iterable[tuple[str, Mapping[str, str]]]) -> str | None:
    """Name the settings that running parties were started without; None if there is nothing.

    started: each party with its `start_settings`.
    """
    ignored: dict[str, str] = {}
    for party, settings in started:
        defaults = _defaults(config, party)
        for key, value in start_settings(config, party).items():
            running = settings.get(key, defaults[key])
            if value not in (running, ALSO_LOADED.get((key, running))):
                ignored[key] = running
    if not ignored:
        return None
    listed = ", ".join(f"{key} = {value}" for key, value in ignored.items())
    return f"settings: what runs here was started with {listed}; for yours, use --fresh or start it again with them"


def _defaults(config: Config, party: str) -> dict[str, str]:
    fields = settings_of(WorkerConfig) if party in config.workers else ()
    own = {f"workers.{party}.{setting.name}": as_toml(setting.default) for setting in fields}
    return own | _values(Config().with_names(), party)


def _values(config: Config, party: str) -> dict[str, str]:
    """Settings of a start, as TOML values by key."""
    own = f"workers.{party}." if party in config.workers else f"{party}."
    asked = {f"{own}{name}" for name in ASKED}
    keys = {f"{section}.{setting.name}": as_toml(value) for section, setting, value in walk(config)}
    return {key: keys[key] for key in keys if key.startswith((own, *SHARED)) and key not in asked}
