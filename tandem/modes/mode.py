"""The interface of a mode: every rule in which the modes differ, for one query. One file beside this one is one mode.

Where a drafter without a vote proposes, and votes follow its proposals (speculative, federated):

    drafter --Vote: ids--> voters --Vote--> who decides --Verdict--> all others
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from math import exp, fsum, inf, nan
from typing import Any, ClassVar

from tandem.aggregation.distributions import TOLERANCE
from tandem.aggregation.race_lists import RaceList
from tandem.aggregation.rules import LOTTERY, Coupled, DraftRule, draft_rule, draw_owner
from tandem.citations import Part
from tandem.codecs.base import Codec
from tandem.codecs.votes import RaceLists, log_probabilities, read_named_token
from tandem.config.checks import SettingError
from tandem.errors import ConfigError, ProtocolError
from tandem.messages import ListRequest, Logprobs, Tail, Verdict, VerifyResult, Vote
from tandem.messages.wire import MAX_FRAME_BYTES
from tandem.modes.query import QuerySpec, Role, Roles
from tandem.modes.tally import Tally, UnreadableVoteError
from tandem.topology import PARTIES, Party, alone, as_party

BYTES_PER_TOKEN = 4
"""A token of the vocabulary takes so many in a vote in full."""


class Mode(ABC):
    """The rules of one mode for one query. The defaults are those of parties whose drafts are their votes."""

    name: ClassVar[str]
    follows_proposals: ClassVar[bool] = False
    """Whether one pass over k proposed tokens gives k + 1 votes, one more than there are tokens."""
    has_lottery: ClassVar[bool] = False
    """Whether the rule `lottery` can decide: several voters are mixed."""
    votes_are_tokens: bool = False
    """Whether a vote is the token that it gives: that of the only voter, or of the one that the lottery draws, is the
    target, and nobody need know how probable others were."""
    max_proposal: ClassVar[int] = 1
    """Tokens of one proposal that the link takes, at most."""
    all_decide: bool = False
    """Whether each party decides every step alone, and sends no verdicts."""
    is_placed: bool = False
    """Whether there is a choice of who decides, for which profiler and scheduler estimate."""

    def __init__(self, spec: QuerySpec) -> None:
        """Raises ConfigError where the mode does not allow these parties."""
        self.spec = spec
        self.roles = self.assign_roles(spec)
        self.votes_are_tokens = self.votes_are_tokens or self.draft_rule == LOTTERY

    @cached_property
    def draft_rule(self) -> str:
        """The rule by which drafts are drawn and verified. "auto" stands for `lottery` where voters are mixed above
        temperature 0, nobody asks how probable tokens are and no codec of whole votes is named, else for `coupled`."""
        spec = self.spec
        if spec.decoding.draft_rule != "auto":
            return spec.decoding.draft_rule
        is_drawn = spec.sampling.temperature > 0 and spec.num_logprobs is None and spec.race_depth > 0
        return LOTTERY if self.has_lottery and is_drawn else Coupled.name

    @property
    def drawing_rule(self) -> str:
        """The rule by which a party draws a token from its own distribution."""
        return Coupled.name if self.draft_rule == LOTTERY else self.draft_rule

    def needed(self, step: int, voters: Sequence[str]) -> tuple[str, ...]:
        """The voters, of those that are there, whose votes decide a step: all, unless it is certain whom the lottery
        draws. With fixed weights it is; and of two of which the first is the home it is in the part of [0, 1) that
        `max_peer_share` leaves to the home whatever the documents weigh."""
        if self.draft_rule != LOTTERY or len(voters) < 2:
            return tuple(voters)
        roles, spec = self.roles, self.spec
        if not roles.weighs_by_documents:
            weights = roles.shares([roles.topology.index(voter) for voter in voters])
            return (voters[draw_owner(weights, seed=spec.seed, step=step)],)
        may_be_certain = len(voters) == 2 and voters[0] == roles.topology.home
        is_certain = (
            may_be_certain and draw_owner((1.0 - spec.max_peer_share, 1.0), seed=spec.seed, step=step) == 0
        )
        return tuple(voters[:1] if is_certain else voters)

    def check_lottery(self) -> None:
        """Raises ConfigError if the rule `lottery` is asked for where it cannot decide."""
        spec = self.spec
        if spec.decoding.draft_rule != LOTTERY:
            return
        problem = ""
        if spec.sampling.temperature == 0:
            problem = "there is nothing to draw at temperature 0; raise it"
        elif spec.num_logprobs is not None:
            problem = "nobody knows the mixture, nor log probabilities in it; ask for none"
        elif spec.race_depth == 0:
            problem = 'no distribution travels that a codec could encode; set codec.name to "auto"'
        if problem:
            raise ConfigError(
                f'Under the draft rule "{LOTTERY}" {problem}, or set draft_rule to "coupled".',
                option="draft_rule",
            )

    # ---- who does what -----------------------------------------------------------------------------------------

    @abstractmethod
    def assign_roles(self, spec: QuerySpec) -> Roles:
        """The roles of all parties: who drafts, votes and decides."""

    @property
    def first_decider(self) -> str:
        """The decider of step 0."""
        return self.roles.deciders[0]

    @property
    def title(self) -> str:
        """The mode within a sentence, with what matters for who may send what."""
        return f"mode {self.name}"

    @property
    def pacing(self) -> str:
        """The pacing, how far proposals run ahead of verdicts: "stop_and_wait", "pipelined" or "cloud_goes_on"."""
        return self.spec.decoding.pacing

    def goes_on_at(self, party: str) -> bool:
        """Whether `party` commits tokens without being asked, one after the other."""
        return False

    def audience(self, kind: type[Any], party: str) -> tuple[str, ...]:
        """The peers to which `party` sends what an answer is made of: `Vote`, `Verdict`, `ListRequest`.

        A draft that is a vote goes to who decides; another one to the voters, whose votes on it go to who decides.
        """
        own, peers = self.roles.role(party), self.roles.topology.peers(party)
        voters = tuple(peer for peer in peers if self.roles.role(peer).votes)
        deciders = tuple(peer for peer in peers if self.roles.role(peer).decides)
        audiences = {
            Vote: voters if own.drafts and self.follows_proposals else deciders,
            Verdict: peers if own.decides and not self.all_decide else (),
            ListRequest: voters if own.decides and self.has_race_lists else (),
        }
        return audiences[kind]

    # ---- proposals of a drafter without a vote -----------------------------------------------------------------

    @property
    def needs_drafts(self) -> bool:
        """Whether a drafter without a vote sends the distributions that its tokens were drawn from."""
        return False

    def proposes(self, party: str) -> bool:
        """Whether `party` drafts for others, who decide what stands."""
        return False

    @property
    def longest_proposal(self) -> int:
        """Tokens of a proposal, at most; distributions that travel with them may leave room for fewer."""
        return self.spec.decoding.max_proposal

    def count_fitting(self, payloads: Sequence[bytes]) -> int:
        """How many of these drafts, in order, one proposal may hold. payloads: their encoded distributions."""
        return len(payloads)

    # ---- citations -----------------------------------------------------------------------------------------------

    def part_elsewhere(self, accepted: Sequence[bool]) -> Part | None:
        """How much of a token that another party decided is the home's, of whose vote alone the home knows; None: it
        has no vote.

        The shares are the fixed ones, or the same of all that have documents; the others may be certain of the token.
        accepted: whether each drafter had proposed it.
        """
        home, roles = self.roles.topology.home, self.roles
        if home not in roles.voters:
            return None
        if not roles.weighs_by_documents:
            return Part(roles.role(home).weight or 0.0, 1.0)
        reading = [name for name in roles.voters if self.spec.num_documents(name)]
        return Part(1.0 / len(reading) if home in reading else 0.0, 1.0)

    # ---- votes and verdicts ------------------------------------------------------------------------------------

    @property
    def has_race_lists(self) -> bool:
        """Whether a vote crosses the link as the tokens that score best in the race, and as more of them if need be."""
        is_coupled = self.draft_rule == Coupled.name
        return self.spec.race_depth > 0 and is_coupled and not self.votes_are_tokens

    def codec_of_votes(self, configured: Codec) -> Codec:
        """The codec that a drafter encodes with: votes in full where lists are cut from them, or where a draw from them
        is all that is sent. configured: by name."""
        return RaceLists() if self.has_race_lists or self.draft_rule == LOTTERY else configured

    @cached_property
    def rule(self) -> DraftRule:
        """How a token is drawn from a distribution that decides. Raises ConfigError if there is no such rule."""
        name = Coupled.name if self.votes_are_tokens else self.draft_rule
        return draft_rule(name, self.spec.sampling.temperature)

    def decide(self, tally: Tally) -> VerifyResult:
        """The target of each prefix that was voted on, as long as the proposal gives it, and then the first other one.

        That one is the correction of a rejected token, or the bonus behind the last. A voter without company is drawn
        from as it drafts. Race lists may leave a target open: what stands before it is decided.
        """
        tokens: list[int] = []
        num_accepted, drafters, first = 0, self.roles.drafters, tally.voters[0]
        is_single = len(tally.voters) == 1 and first in drafters  # its draft is the target
        for position in range(tally.num_positions):
            proposed = tally.proposed(position)
            is_draft = is_single and proposed is not None
            try:
                token = proposed if is_draft else self.choose(tally, position)
            except UnreadableVoteError:
                if not tokens:
                    raise
                break  # what stands before it is decided
            if token is None:
                break
            tokens.append(token)
            if token != proposed:
                break
            num_accepted += 1
        if not tokens:
            return tally.make_undecided(tally.read_votes())
        return tally.make_result(
            tokens=tuple(tokens),
            accepted=tuple(
                int(drafter == first) * len(tokens) if is_single else num_accepted for drafter in drafters
            ),
            acceptance=(nan,) * len(drafters),
            next_decider=self.roles.topology.index(tally.party),
        )

    def choose(self, tally: Tally, position: int) -> int | None:
        """The target behind so many proposed tokens; None: race lists leave it open."""
        if self.votes_are_tokens:
            return tally.read_tokens(position)[tally.owner(position)]
        name = tally.voters[0]
        party = Party(name) if name in PARTIES else Party.CLOUD
        return self.rule.draft(
            tally.mix(position), seed=self.spec.seed, step=tally.ballot.step + position, party=party
        )

    # ---- log probabilities: of the party that knows the target, for the home -------------------------------------

    @property
    def _informs_home(self) -> bool:
        """Whether the home hears how probable tokens are from another party, which decides."""
        return self.votes_are_tokens or self.roles.topology.home not in self.roles.deciders

    def num_named(self, party: str) -> int | None:
        """How many likeliest tokens `party` names besides each that it decides, all with their log probabilities; None:
        it says nothing. The home does, and who alone knows the target."""
        is_target = self._informs_home and self.roles.role(party).decides
        return self.spec.num_logprobs if party == self.roles.topology.home or is_target else None

    def sends_whole_votes(self, party: str) -> bool:
        """Whether `party` sends its votes in full where lists of them would do: who decides names probabilities."""
        home = self.roles.topology.home
        return self.spec.num_logprobs is not None and (party != home or home not in self.roles.deciders)

    def check_logprobs(self) -> None:
        """Raises ConfigError if `num_logprobs` is wanted where the home cannot have them: others decide and say nothing
        of them, or whole votes exceed a message."""
        spec, roles = self.spec, self.roles
        if spec.num_logprobs is None:
            return
        if self.is_placed and not (self.all_decide or roles.deciders == (roles.topology.home,)):
            raise SettingError(
                "num_logprobs",
                f'needs every token to be decided at home, but with placement "{spec.decoding.placement}" the cloud '
                'may decide and sends tokens alone; set placement to "mirror" or "device".',
            )
        num_voters, num_votes = len(roles.voters), 1 + self.follows_proposals * self.longest_proposal
        num_bytes = num_voters * num_votes * BYTES_PER_TOKEN * spec.vocab_size
        if self.has_race_lists and num_bytes > MAX_FRAME_BYTES // 2:
            raise SettingError(
                "num_logprobs",
                f"has {num_voters} workers send whole distributions over {spec.vocab_size} tokens for {num_votes} "
                f"tokens at a time, which exceeds a message of {MAX_FRAME_BYTES} bytes; lower max_proposal, or set "
                "codec.name to top_p.",
            )

    def make_tail(self, tally: Tally, tokens: Sequence[int]) -> tuple[Tail, ...]:
        """How probable decided tokens were, as far as all votes are known in full; nothing where nobody asks."""
        num_top, named = self.num_named(tally.party), list[Logprobs]()
        for position, token in enumerate(tokens if num_top is not None else ()):
            logprobs = self._find_logprobs(tally, position, token, num_top or 0)
            if logprobs is None:
                break
            named.append(logprobs)
        return (Tail(logprobs=tuple(named)),) if named else ()

    def _find_logprobs(self, tally: Tally, position: int, token: int, num_top: int) -> Logprobs | None:
        """The log probabilities of the token behind so many proposed ones; None: a vote is not known in full."""
        first = self.roles.role(tally.voters[0])  # one without a vote continues with its drafts
        if self.votes_are_tokens if first.votes else not self.needs_drafts:
            return read_named_token(tally.payloads(position)[0], self.spec.vocab_size)[1]
        if self.has_race_lists and any(isinstance(vote, RaceList) for vote in tally.read_votes(position)):
            return None
        target = tally.mix(position)
        return log_probabilities(target, token, num_top) if target.probability(token) else None

    def check_tail(self, source: str, tail: Tail, num_tokens: int, *, must_name: bool) -> None:
        """Raises ProtocolError, one sentence, if the log probabilities of a verdict on so many tokens are not what this
        query asks of `source`. must_name: the tail has nothing else to say."""
        named, num_top = tail.logprobs, self.spec.num_logprobs
        if not (named or must_name):
            return
        if num_top is None or not self._informs_home:
            raise ProtocolError(
                f"{source} sent log probabilities, which this query does not ask of it; check its version."
            )
        if len(named) != num_tokens:
            raise ProtocolError(
                f"{source} sent log probabilities of {len(named)} tokens in a verdict of {num_tokens}; check its "
                "version."
            )
        if not all(_is_possible(each, num_top, self.spec.vocab_size) for each in named):
            raise ProtocolError(
                f"{source} sent log probabilities that no distribution has, or more than {num_top} of a step; "
                "check its version."
            )


def _is_possible(logprobs: Logprobs, num_top: int, vocab_size: int) -> bool:
    """Whether some distribution over the vocabulary has these, which are at most so many."""
    ids, values = logprobs.top_ids, (logprobs.logprob, *logprobs.top_logprobs)
    if not len(set(ids)) == len(ids) == len(logprobs.top_logprobs) <= num_top:
        return False
    if any(index >= vocab_size for index in ids) or not all(-inf < value <= TOLERANCE for value in values):
        return False
    return fsum(map(exp, logprobs.top_logprobs)) <= 1.0 + len(values) * TOLERANCE


MAX_PROPOSAL = 16
"""Most tokens of one proposal."""


class Proposing(Mode):
    """Proposals of up to `max_proposal` tokens; a party that is both voter and decider sends itself nothing."""

    follows_proposals = True
    max_proposal = MAX_PROPOSAL

    def proposes(self, party: str) -> bool:
        """The drafter, unless no token fits a proposal."""
        return self.longest_proposal > 0 and self.roles.role(party).drafts


class Solo(Mode):
    """A mode of one voter."""

    name = "solo"

    def __init__(self, spec: QuerySpec, *, votes_are_tokens: bool) -> None:
        """votes_are_tokens: in the mode that the query would have with the others.

        What the codec leaves of a vote decides there and so does here, that answers compare. Race lists leave the whole
        target, so nothing needs to be encoded where nobody else reads it.
        """
        super().__init__(spec)
        self.votes_are_tokens |= votes_are_tokens or self.has_race_lists

    def assign_roles(self, spec: QuerySpec) -> Roles:
        """All are its own."""
        role = Role(drafts=True, votes=True, weight=1.0, decides=True)
        return Roles(topology=alone(as_party(spec.only or "")), roles=(role,))
