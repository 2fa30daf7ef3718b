"""What a user asks and what the parties have, as all parties must know it, and the roles: who drafts, votes, decides.

Defaults live in `tandem.config`; `tandem.client.request` fills a query in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field

from tandem.aggregation.rules import limit_shares
from tandem.aggregation.rules import shares as log_shares
from tandem.codecs.base import MAX_VOCAB
from tandem.codecs.votes import MAX_LISTED
from tandem.config.parties import RowLayout
from tandem.config.schema import DecodingConfig, SamplingParams
from tandem.conversation import Frame, Message
from tandem.errors import Code, GenerationError
from tandem.topology import MAX_PARTIES, Party, Topology, at_start


@dataclass(frozen=True, slots=True)
class Role:
    """The tasks of one party."""

    drafts: bool = False  # proposes tokens
    votes: bool = False  # contributes a distribution to the target
    weight: float | None = None  # its share of the target; None: by the log weight that comes with each vote
    decides: bool = False  # computes the target


@dataclass(frozen=True, kw_only=True)
class Roles:
    """The parties of a session and the role of each, in the topology's order."""

    topology: Topology
    roles: tuple[Role, ...]

    @cached_property
    def drafters(self) -> tuple[str, ...]:
        """The parties that propose tokens."""
        return self._names([role.drafts for role in self.roles])

    @cached_property
    def voters(self) -> tuple[str, ...]:
        """The parties that contribute a distribution."""
        return self._names([role.votes for role in self.roles])

    @cached_property
    def deciders(self) -> tuple[str, ...]:
        """The parties that compute the target."""
        return self._names([role.decides for role in self.roles])

    @cached_property
    def weights(self) -> tuple[float | None, ...]:
        """The share of each voter, in order; None: by the log weights of the votes."""
        return tuple(role.weight for role in self.roles if role.votes)

    @cached_property
    def weighs_by_documents(self) -> bool:
        """Whether each vote comes with the log weight of its party's documents, which decides how much it counts."""
        return all(weight is None for weight in self.weights)

    def shares(
        self, voters: Sequence[int], log_weights: Sequence[float] = (), max_peer_share: float = 1.0
    ) -> tuple[float, ...]:
        """How much each of these parties counts (eta), of sum 1. voters: indices of the topology, in order.

        By the log weights of their votes, of which nobody's but the home's counts more than `max_peer_share`; where
        weights are fixed, by these, renormalised if some are lost: half each, and so on, where all have weight 0.
        """
        if self.weighs_by_documents:
            home = self.topology.index(self.topology.home)
            most = [1.0 if voter == home else max_peer_share for voter in voters]
            return limit_shares(log_shares(*log_weights), most)
        weights = [self.roles[voter].weight or 0.0 for voter in voters]
        if len(weights) == len(self.weights):
            return tuple(weights)
        total = sum(weights)
        return tuple(weight / total if total else 1.0 / len(weights) for weight in weights)

    def role(self, party: str) -> Role:
        """The role of `party`. Raises ConfigError if it is none of the session."""
        return self.roles[self.topology.index(party)]

    def _names(self, flags: Sequence[bool]) -> tuple[str, ...]:
        return tuple(name for name, flag in zip(self.topology.parties, flags, strict=True) if flag)


PeerLoss = Literal["continue", "wait", "fail"]

MAX_TOP_LOGPROBS = 20
"""Likeliest tokens that a query may ask for, as OpenAI has it."""


MAX_DOCUMENTS, MAX_LINE, MAX_SCALE, MAX_WAIT_S = 1 << 16, 8, 1e6, 1e9
"""Bounds of fields below, far above what anybody needs: documents of a party, numbers of an offline profile, factors of
scores, seconds."""
MAX_ENDS, MAX_TURNS = 256, 4096
"""Tokens that end an answer, earlier messages and earlier tokens of one query."""
MAX_BIASES, MAX_BIAS, MAX_GRAMMAR = 1024, 100.0, 1 << 18
"""Tokens with a bias and its size, as OpenAI has it; characters of a grammar."""


def wire(name: str, **bounds: Any) -> Any:
    """A short name for a field where it crosses a link, and bounds of its values there (pydantic's constraints). No two
    fields may have the same name."""
    return Field(alias=name, **bounds)


PartyName = Annotated[str, Field(min_length=1, max_length=128)]
Word = Annotated[str, Field(max_length=256)]
Token = Annotated[int, Field(ge=0, lt=MAX_VOCAB)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Share = Annotated[Finite, Field(ge=0, le=1)]
Number = Annotated[Finite, Field(ge=-MAX_SCALE, le=MAX_SCALE)]
Counts = dict[PartyName, Annotated[int, Field(ge=0, le=MAX_DOCUMENTS)]]
Bias = tuple[Token, Annotated[Finite, Field(ge=-MAX_BIAS, le=MAX_BIAS)]]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySpec:
    """One query as a user asks it; `SessionSpec` knows its rules, too.

    Bounds hold for what is read from a peer (`SessionSpec.from_json`), before anything of it is kept.
    """

    session: Annotated[int, wire("a", ge=0, lt=1 << 32)]  # names the query on the link
    query: Annotated[str, wire("b")]  # the question: weighs documents together with the answer
    # with the retrieved documents, models and codec it determines the answer
    seed: Annotated[int, wire("c", ge=0, lt=1 << 64)]
    sampling: Annotated[SamplingParams, wire("d")]
    decoding: Annotated[DecodingConfig, wire("e")]  # an experiment may bring another placement
    documents: Annotated[Counts, wire("f", max_length=MAX_PARTIES)] = field(hash=False)  # to retrieve
    relevance_scale: Annotated[Finite, wire("g", ge=0, le=MAX_SCALE)]  # how much a document's score counts
    question_weight: Annotated[Finite, wire("h", ge=-1, le=100)]  # how much its likelihood in a row counts
    evidence_weight: Annotated[Finite, wire("i", ge=0, le=100)]  # and that of the answer so far; 0: static
    evidence_memory: Annotated[Finite, wire("j", ge=0, le=1)]  # what is kept of its evidence at each step
    on_peer_loss: Annotated[PeerLoss, wire("k")]
    peer_loss_margin_s: Annotated[Finite, wire("l", ge=0, le=MAX_WAIT_S)]  # beyond max(4 RTT, 0.5 s)
    # of the models that the answer begins with; of a party that is not named any will do
    weights_fingerprints: Annotated[dict[PartyName, Word], wire("m", max_length=MAX_PARTIES)] = field(
        default_factory=dict, hash=False
    )
    eos_token_ids: Annotated[tuple[Token, ...], wire("n", max_length=MAX_ENDS)] = ()
    vocab_size: Annotated[int, wire("o", ge=1, le=MAX_VOCAB)] = 1 << 18  # of the models' common tokenizer
    # of offline profiles; empty: there is none
    device_decode_line: Annotated[tuple[Number, ...], wire("p", max_length=MAX_LINE)] = ()
    cloud_decode_line: Annotated[tuple[Number, ...], wire("q", max_length=MAX_LINE)] = ()
    only: Annotated[PartyName | None, wire("r")] = None  # it answers alone, and nothing crosses the link
    # metadata that documents must have: a JSON object; empty: any
    device_filter: Annotated[str, wire("s")] = ""
    cloud_filter: Annotated[str, wire("t")] = ""
    history: Annotated[tuple[Message, ...], wire("u", max_length=MAX_TURNS)] = ()  # earlier turns
    show_drafts: Annotated[bool, wire("w")] = False  # the client gets the home's drafts at once
    workers: Annotated[tuple[PartyName, ...], wire("x", max_length=MAX_PARTIES)] = ()  # of mode "federated"
    # of each worker, of sum 1; none: by its documents
    weights: Annotated[tuple[Share, ...], wire("y", max_length=MAX_PARTIES)] = ()
    race_depth: Annotated[int, wire("z", ge=0, le=MAX_LISTED)] = 0  # of a vote's first list; 0: whole votes
    # likeliest tokens that come with each token and its log probability; None: neither
    num_logprobs: Annotated[Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None, wire("aa")] = None
    # how documents stand in rows, where not each has its own (`protocol.decoding.arrange_rows`)
    layouts: Annotated[dict[PartyName, RowLayout], wire("dd", max_length=MAX_PARTIES)] = field(
        default_factory=dict, hash=False
    )
    # parties whose documents weigh against each other have, or may have, different models
    has_several_models: Annotated[bool, wire("ee")] = False
    # how long a peer that is heard may owe a vote or verdict, at least
    peer_stall_s: Annotated[Finite, wire("gg", gt=0, le=MAX_WAIT_S)] = 15.0
    # most that a vote of another party than the home counts, where documents weigh
    max_peer_share: Annotated[Finite, wire("hh", gt=0, le=1)] = 1.0
    day: Annotated[Word, wire("ff")] = ""  # the query's, as 2026-11-25, for chat templates that write it
    system_prompt: Annotated[str | None, wire("ii")] = None  # of this query; None: as each party has it
    logit_bias: Annotated[tuple[Bias, ...], wire("jj", max_length=MAX_BIASES)] = ()  # added to logits
    # that the answer follows: JSON, {one of GRAMMARS: itself}; empty: none
    grammar: Annotated[str, wire("kk", max_length=MAX_GRAMMAR)] = ""
    search: Annotated[str, wire("ll")] = ""  # finds documents instead of the query; empty: the query does
    # of the list that the answer's pieces are numbers of (`engine.pieces`); empty: it is of the models' tokens
    pieces: Annotated[Word, wire("mm")] = ""
    # whether device and cloud tell the home which words their passages have, by their marks (`client.steps`)
    wants_marks: Annotated[bool, wire("_marks")] = False

    @property
    def frame(self) -> Frame:
        """The part that chat templates get. No piece is the end of a thought."""
        return Frame(self.day, self.system_prompt, ends_thought=bool(self.pieces))

    @property
    def search_text(self) -> str:
        """What finds documents."""
        return self.search or self.query

    @property
    def texts(self) -> list[str]:
        """The question, and all that its history holds."""
        return [self.query, *(message.content for message in self.history)]

    @property
    def question_before(self) -> str:
        """The question of the turn before; empty: there is none."""
        return self.history[-2].content if self.history else ""

    @property
    def num_bytes(self) -> int:
        """The bytes of the question and its history in UTF-8, without what a template adds."""
        texts = (self.query, self.system_prompt or "", *(message.content for message in self.history))
        return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)

    def check_weights(self, party: str, fingerprint: str) -> None:
        """An answer is of one version of each model. Raises GenerationError if `party` has another one by now."""
        if self.weights_fingerprints.get(party, fingerprint) != fingerprint:
            raise GenerationError(
                f"{at_start(party)} has other weights by now than those that this answer began with; ask again.",
                code=Code.CHANGED,
            )

    def num_documents(self, party: str) -> int:
        """Documents that `party` retrieves."""
        return self.documents.get(party, 0)

    def row_layout(self, party: str) -> str:
        """The layout of the documents of `party` in rows."""
        return self.layouts.get(party, "rows")

    def filter(self, party: str) -> str:
        """Metadata that the documents of `party` must have: a JSON object, or empty."""
        if party == Party.DEVICE:
            return self.device_filter
        return self.cloud_filter if party == Party.CLOUD else ""

    def decode_line(self, party: Party) -> tuple[float, ...]:
        """The offline profile of the decode time of `party`."""
        return self.device_decode_line if party is Party.DEVICE else self.cloud_decode_line
