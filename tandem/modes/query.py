"""What both parties must know of one query: what a user asks, and what the parties have.

Defaults live in `tandem.config` and `tandem.config.sampling`; `tandem.client.request` fills a query in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tandem.codecs.base import MAX_VOCAB
from tandem.config.sampling import SamplingParams
from tandem.conversation import Message, join_questions
from tandem.errors import Code, GenerationError
from tandem.topology import Party, at_start

PeerLoss = Literal["continue", "wait", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One query as a user asks it; `SessionSpec` knows its rules, too."""

    session: int  # 32 bits, names the query on the link
    query: str
    seed: int  # 64 bits; with the retrieved documents, models and codec it determines the answer
    sampling: SamplingParams
    draft_rule: str  # "coupled"; in mode dual also "algorithm1", in mode speculative "rejection"
    placement: str  # "device", "cloud", "greedy" or "mirror"; an experiment may bring another policy
    synchronous: bool  # token-wise loop: no draft before the previous token is committed (DRDG/TW)
    documents: dict[str, int] = field(hash=False)  # to retrieve, by party
    weights_fingerprints: dict[str, str] = field(
        default_factory=dict, hash=False
    )  # of the models that the answer begins with, by party; of those who are not named any will do
    relevance_scale: float  # how much a document's score counts
    question_weight: (
        float  # how much the question's likelihood in a row counts; see `aggregation.document_weights`
    )
    evidence_weight: float  # how much that of the answer so far counts; 0: static weights
    evidence_memory: float  # what is kept of its evidence at each step
    max_window: int  # most drafts past the last committed token
    on_peer_loss: PeerLoss
    peer_loss_margin_s: float  # silence allowed beyond max(4 RTT, 0.5 s)
    eos_token_ids: tuple[int, ...] = ()
    vocab_size: int = MAX_VOCAB  # tokens of the models, which share a tokenizer
    device_decode_line: tuple[
        float, ...
    ] = ()  # of the offline profile (`profiler.line`); empty: there is none
    cloud_decode_line: tuple[float, ...] = ()
    only: str | None = None  # this party answers by itself and nothing crosses the link; None: both together
    device_filter: str = ""  # metadata that a party's documents must have: a JSON object; empty: any
    cloud_filter: str = ""
    history: tuple[Message, ...] = ()  # earlier questions and answers
    chat_query: str = "last"  # what finds documents: the "last" question, "all" of them, or `condensed`
    show_drafts: bool = False  # the client also receives the home party's drafts, before they are committed
    mode: str = "dual"  # a key of `tandem.modes.MODES`
    max_proposal: int = 4  # modes whose drafter has no vote: tokens of a proposal
    pacing: str = "cloud_goes_on"  # "stop_and_wait", "pipelined" or "cloud_goes_on"
    length_policy: str = (
        "fixed"  # modes whose drafter has no vote: who chooses the length of proposals, up to max_proposal
    )
    uplink_budget_bits: int = 0  # mode "speculative": of the ids and distributions of a proposal; 0: no limit
    workers: tuple[str, ...] = ()  # mode "federated": who votes; the server's name is `SERVER`
    weights: tuple[
        float, ...
    ] = ()  # the share of each worker, of sum 1; none: by the log weights of their votes
    race_depth: int = (
        0  # coupled drafts where several vote: tokens of the first race list; 0: whole distributions
    )
    num_logprobs: int | None = (
        None  # likeliest tokens that come with each token and its log probability; None: neither
    )

    committed: tuple[int, ...] = ()  # tokens of the answer that an earlier run of this query committed
    condensed: str = ""  # the question as the home's model wrote it from the conversation; empty: it did not
    layouts: dict[str, str] = field(
        default_factory=dict, hash=False
    )  # how documents stand in rows, by party, where not each has its own (`protocol.rows`)
    has_several_models: bool = (
        False  # parties whose documents weigh against each other have, or may have, different models
    )
    asked: str = ""  # mode "federated": the worker whose client asks; empty: the server's
    day: str = ""  # the query's, as 2026-11-25, for chat templates that write it; empty where none does

    @property
    def search_text(self) -> str:
        """What documents are found by, and weighed by together with the answer."""
        if self.chat_query == "all":
            return join_questions(self.history, self.query)
        return self.condensed or self.query

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
        """How the documents of `party` stand in rows."""
        return self.layouts.get(party, "rows")

    def filter(self, party: str) -> str:
        """Metadata that the documents of `party` must have: a JSON object, or empty."""
        if party == Party.DEVICE:
            return self.device_filter
        return self.cloud_filter if party == Party.CLOUD else ""

    def decode_line(self, party: Party) -> tuple[float, ...]:
        """The offline profile of the decode time of `party`."""
        return self.device_decode_line if party is Party.DEVICE else self.cloud_decode_line
