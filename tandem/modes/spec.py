"""What both parties must know of one query, in a form that travels on the control plane.

Defaults live in `tandem.config` and `tandem.config.sampling`; `tandem.request` fills a spec in.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from tandem.aggregation.rules import proposal_rule
from tandem.codecs.base import MAX_VOCAB, Codec
from tandem.codecs.race_lists import RaceLists
from tandem.config.sampling import SamplingParams
from tandem.conversation import Message, join_questions
from tandem.errors import ConfigError, GenerationError, ProtocolError
from tandem.modes.roles import Roles, dual, federated, find_mode, solo, speculative
from tandem.modes.uplink_budget import UplinkBudget
from tandem.topology import PARTIES, Party, as_party, at_start

PeerLoss = Literal["continue", "wait", "fail"]

FIRST_LENGTH = 4
"""Tokens of the first proposals of a query, where lengths adapt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSpec:
    """One query. Both parties hold the same spec, except that the cloud does not see the device's filter (`as_for`)."""

    __pydantic_config__ = ConfigDict(alias_generator=lambda name: _short_name(name))

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
    mode: str = "dual"  # a row of `tandem.modes.roles.MODES`
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
    def first_aggregator(self) -> Party:
        """Who decides step 0. Under `mirror` both do, and the device takes precedence after a loss. `greedy` begins on
        the device."""
        if self.only is not None and self.only in PARTIES:
            return Party(self.only)
        return Party.CLOUD if self.placement == "cloud" else Party.DEVICE

    @property
    def has_race_lists(self) -> bool:
        """Whether a vote crosses the link as the tokens that score best in the race, and as more of them if need be."""
        return self.race_depth > 0 and not self.votes_are_tokens and self.draft_rule == "coupled"

    def codec_of_votes(self, configured: Codec) -> Codec:
        """What a drafter encodes with: votes in full where lists are cut from them. configured: by `codec.name`."""
        return RaceLists() if self.has_race_lists else configured

    @property
    def search_text(self) -> str:
        """What documents are found by, and weighed by together with the answer."""
        if self.chat_query == "all":
            return join_questions(self.history, self.query)
        return self.condensed or self.query

    def sends_whole_votes(self, party: str) -> bool:
        """Whether `party` sends its votes in full where lists of them would do: who decides names probabilities."""
        return self.num_logprobs is not None and (party != self.home or self.mode == "federated")

    def names_logprobs(self, party: str) -> bool:
        """Whether `party` says how probable the tokens are that it decides: the home, or who alone knows the target."""
        is_target = self.tells_logprobs and self.roles.role(party).decides
        return self.num_logprobs is not None and (party == self.home or is_target)

    @property
    def tells_logprobs(self) -> bool:
        """Whether the home hears how probable tokens are from another party, which decides."""
        return self.votes_are_tokens or self.home not in self.roles.deciders

    @property
    def roles(self) -> Roles:
        """Who drafts, votes and decides. Raises ConfigError where the mode does not allow it."""
        return _roles(self.mode, self.only, self.placement, self.workers, self.weights, self.asked)

    @property
    def is_mirrored(self) -> bool:
        """Whether all parties decide every step by themselves."""
        return self.mode == "dual" and self.placement == "mirror"

    @property
    def votes_are_tokens(self) -> bool:
        """Whether a vote is the token that it gives: the only voter need not say how probable the others are."""
        return self.mode == "speculative"

    @property
    def sends_drafts(self) -> bool:
        """Whether a drafter without a vote sends the distributions that its tokens were drawn from."""
        is_speculative = self.roles.mode == "speculative"
        return is_speculative and proposal_rule(self.draft_rule, self.sampling.temperature).needs_drafts

    def proposes(self, party: str) -> bool:
        """Whether `party` drafts for others, who decide what stands."""
        is_possible = find_mode(self.mode).has_bonus and self.longest_proposal > 0
        return is_possible and self.only is None and self.roles.role(party).drafts

    def is_estimated(self, party: str) -> bool:
        """Whether profiler and scheduler of `party` take part: there is a decider to place or a length to choose."""
        return (self.mode == "dual" and self.only is None) or self.adapts_lengths(party)

    def goes_on_at(self, party: str) -> bool:
        """Whether `party` commits tokens without being asked, one after the other."""
        is_decider = self.mode == "speculative" and self.only is None and self.roles.role(party).decides
        return is_decider and self.pacing == "cloud_goes_on"

    def adapts_lengths(self, party: str) -> bool:
        """Whether `party` chooses the length of its proposals again after each."""
        return self._has_lengths and self.proposes(party)

    @property
    def first_length(self) -> int:
        """Tokens of a proposal before anything is known."""
        return min(FIRST_LENGTH, self.longest_proposal) if self._has_lengths else self.longest_proposal

    @property
    def longest_proposal(self) -> int:
        """Tokens of a proposal, at most; distributions that travel with them may leave room for fewer."""
        return self.uplink_budget.longest(self.max_proposal)

    @property
    def uplink_budget(self) -> UplinkBudget:
        """What limits the bits of a proposal; nothing but in mode speculative."""
        num_bits = self.uplink_budget_bits if self.roles.mode == "speculative" else 0
        return UplinkBudget(num_bits, self.vocab_size, sends_drafts=self.sends_drafts)

    @property
    def _has_lengths(self) -> bool:
        """Whether a policy may choose lengths of proposals."""
        return find_mode(self.mode).has_bonus and self.length_policy != "fixed"

    @property
    def first_decider(self) -> str:
        """Who decides step 0."""
        return self.first_aggregator if self.mode == "dual" else self.roles.deciders[0]

    @property
    def parties(self) -> tuple[str, ...]:
        """Who takes part."""
        return self.roles.topology.parties

    @property
    def home(self) -> str:
        """The party whose draft queue keeps the events for the client: the one that is asked."""
        return self.roles.topology.home

    def check_weights(self, party: str, fingerprint: str) -> None:
        """An answer is of one version of each model. Raises GenerationError if `party` has another one by now."""
        if self.weights_fingerprints.get(party, fingerprint) != fingerprint:
            raise GenerationError(
                f"{at_start(party)} has other weights by now than those that this answer began with; ask again."
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

    def as_for(self, party: str) -> SessionSpec:
        """What `party` may see of it: metadata of private documents stay on the device."""
        return self if party == Party.DEVICE else replace(self, device_filter="")

    def decode_line(self, party: Party) -> tuple[float, ...]:
        """The offline profile of the decode time of `party`."""
        return self.device_decode_line if party is Party.DEVICE else self.cloud_decode_line

    def to_json(self) -> str:
        """For the control plane, for `Begin` and for `Open`: what differs from the defaults, under short names.

        UnicodeEncodeError if a text holds half a surrogate pair.
        """
        return _JSON.dump_json(self, by_alias=True, exclude_defaults=True).decode()

    @classmethod
    def from_json(cls, text: str) -> SessionSpec:
        """Inverse of `to_json`. Raises ProtocolError."""
        try:
            return _JSON.validate_json(text, strict=True)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            name, *inner = problem["loc"] or ("JSON",)
            where = ".".join(map(str, (_long_name(str(name)), *inner)))
            raise ProtocolError(
                f"The spec of a session is malformed at {where} ({problem['msg']}); "
                "install the same version of tandem-rag everywhere."
            ) from None
        except ConfigError as error:  # of the sampling options
            raise ProtocolError(
                f"The spec of a session is malformed at sampling ({str(error)!r:.200}); "
                "install the same version of tandem-rag everywhere."
            ) from None


@lru_cache(maxsize=64)
def _roles(
    mode: str,
    only: str | None,
    placement: str,
    workers: tuple[str, ...],
    weights: tuple[float, ...],
    asked: str,
) -> Roles:
    if only is not None:
        return solo(as_party(only))
    match find_mode(mode).name:
        case "speculative":
            return speculative()
        case "federated":
            return federated(weights, workers=workers, home=asked)
        case _:
            return dual(decides=placement if placement in PARTIES else "both")


def _short_name(name: str) -> str:
    """A field's place as a letter or two: an opening crosses the link, which may be slow. Those of turns stay."""
    return _SHORT_NAMES.get(name, name)


def _long_name(short: str) -> str:
    """Of which field it is the short name; itself where there is none."""
    return next((name for name, known in _SHORT_NAMES.items() if known == short), short)


_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_SHORT_NAMES = {
    field.name: _LETTERS[place % 26] * (1 + place // 26) for place, field in enumerate(fields(SessionSpec))
}
_JSON = TypeAdapter(SessionSpec)
