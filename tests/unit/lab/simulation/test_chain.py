"""Modes whose drafter has no vote: every run gives the tokens of the draft-free loop, and planted defects are found.

The mutants are alternative implementations of the small classes; MUTANTS records the first seed that found each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tandem.cli import main
from tandem.errors import ProtocolError
from tandem.lab.simulation import chain as simulated
from tandem.lab.simulation.chain import ChainRun, make_chain_scenario, play_chain
from tandem.lab.simulation.invariants import InvariantError
from tandem.modes.roles import Roles, federated, speculative
from tandem.protocol.chain import Block, ChainSession, Outgoing
from tandem.protocol.lines import LineBook, VerdictBuffer, VoteBox
from tandem.protocol.messages import Commits, Line, LinkBody, LinkFrame, Votes
from tandem.protocol.prefix import Prefix

NUM_SEEDS = 6
WORKERS = (0, 2, 3, 5, 8)


@pytest.mark.parametrize("num_workers", WORKERS)
def test_every_run_gives_the_tokens_of_the_draft_free_loop(num_workers: int) -> None:
    drafters, lines, num_accepted = set(), set(), 0
    for seed in range(NUM_SEEDS):
        num_tokens, counts = play_chain(seed, num_workers)
        assert num_tokens > 0
        scenario = make_chain_scenario(seed, num_workers)
        drafters.add(scenario.drafter)
        lines.add(scenario.max_line)
        num_accepted += counts["tokens accepted"]
    assert len(drafters) > 1
    assert max(lines) > 1
    assert num_accepted > 0, "no proposal was any good"


def test_the_drafter_does_not_show_in_the_answer() -> None:
    for seed in range(10):
        scenario = make_chain_scenario(seed, 2)
        answers = {
            tuple(ChainRun(replace(scenario, drafter=drafter)).run()) for drafter in simulated.DRAFTERS
        }
        assert len(answers) == 1


def test_a_good_drafter_saves_passes() -> None:
    """Several tokens are committed for each pass of the voter."""
    scenario = replace(make_chain_scenario(3, 0), drafter="good", max_line=5, first_end=1 << 30)
    blocks: list[int] = []

    class Counting(ChainSession):
        def vote(self, block: Block, payloads: Sequence[bytes], now_s: float) -> Outgoing:
            blocks.append(len(payloads))
            return super().vote(block, payloads, now_s)

    run = ChainRun(scenario, Counting)
    tokens = run.run()
    assert len(blocks) < len(tokens)
    assert max(blocks) > 2


# ---- mutants -------------------------------------------------------------------------------------------------------


class PairedByStep(VoteBox):
    """A vote counts for its step, whatever prefix it was conditioned on."""

    def add(self, voter: str, votes: Votes, prefix: Prefix) -> bool:
        for length, payload in enumerate(votes.payloads, votes.step):
            self.votes[voter].setdefault(length.to_bytes(8, "big"), (length, payload))
        return True

    def ballot(self, prefix: Prefix) -> list[bytes] | None:
        key = len(prefix).to_bytes(8, "big")
        found = [held.get(key) for held in self.votes.values()]
        payloads = [vote[1] for vote in found if vote is not None]
        return payloads if len(payloads) == len(found) else None


class OldBaseAccepted(LineBook):
    """A line is taken to begin at the committed prefix, whatever its base."""

    def add(self, line: Line, prefix: Prefix) -> bool:
        return super().add(replace(line, step=len(prefix), digest=prefix.digest), prefix)


class FirstTokenOnly(VerdictBuffer):
    """Of a verdict of several tokens only the first counts."""

    def take(self, num_committed: int) -> tuple[int, ...]:
        return super().take(num_committed)[:1]


class BonusOneEarly(ChainSession):
    """The bonus is taken from the vote before the last token of the line, not behind it."""

    def vote(self, block: Block, payloads: Sequence[bytes], now_s: float) -> Outgoing:
        if len(payloads) > 1:
            payloads = [*payloads[:-1], payloads[-2]]
        return super().vote(block, payloads, now_s)


class CacheNotCropped(ChainSession):
    """The model goes on from the line it held: after a partial rejection its votes follow rejected tokens."""

    held: tuple[int, ...] = ()

    def next_block(self, now_s: float) -> Block | None:
        block = super().next_block(now_s)
        if block is None:
            return None
        stale = self.held[: block.first]
        self.held = (*stale, *block.tokens[len(stale) :])
        return replace(block, tokens=self.held) if len(self.held) >= block.first else block


class SharesReversed(VoteBox):
    """The order of the voters is lost: shares go to whoever voted first."""

    def ballot(self, prefix: Prefix) -> list[bytes] | None:
        payloads = super().ballot(prefix)
        return None if payloads is None else payloads[::-1]


class WithoutTheLast(VoteBox):
    """A ballot does not wait for the last voter."""

    def ballot(self, prefix: Prefix) -> list[bytes] | None:
        found = [held.get(prefix.digest) for held in self.votes.values()]
        payloads = [vote[1] for vote in found if vote is not None]
        is_enough = len(payloads) >= max(1, len(found) - 1)
        return [*payloads, payloads[-1]][: len(found)] if is_enough else None


MUTANTS: dict[str, tuple[type[Any], int, range]] = {
    "votes_paired_by_step": (PairedByStep, 0, range(4)),  # first: 0, the parties differ
    "line_with_an_old_base_accepted": (OldBaseAccepted, 0, range(4)),  # first: 0, a buffer grows
    "only_the_first_token_of_a_verdict": (FirstTokenOnly, 0, range(4)),  # first: 0, hang
    "bonus_from_the_vote_before": (BonusOneEarly, 0, range(8)),  # first: 1, another answer
    "cache_not_cropped": (CacheNotCropped, 0, range(4)),  # first: 0, hang
    "shares_not_in_the_voters_order": (SharesReversed, 2, range(4)),  # first: 0, another answer
    "ballot_without_the_last_voter": (WithoutTheLast, 2, range(4)),  # first: 0, another answer
}
"""By name: the mutant, the number of workers (0: speculative), and seeds among which it is found."""


def plant(patch: pytest.MonkeyPatch, mutant: type[Any]) -> type[ChainSession]:
    """Have sessions use `mutant` in place of the class it derives from; the class of session to run."""
    if issubclass(mutant, ChainSession):
        return mutant
    patch.setattr("tandem.protocol.chain." + mutant.__mro__[1].__name__, mutant)
    return ChainSession


@pytest.mark.parametrize("name", MUTANTS)
def test_the_comparison_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant, num_workers, seeds = MUTANTS[name]
    session_class = plant(monkeypatch, mutant)
    monkeypatch.setattr(simulated, "LIMIT_S", 30.0)
    for seed in seeds:
        try:
            play_chain(seed, num_workers, session_class)
        except InvariantError:
            return
    pytest.fail("no run found it")


# ---- bad input -----------------------------------------------------------------------------------------------------


def make(party: str, roles: Roles) -> ChainSession:
    return ChainSession(1, roles, party, lambda payloads, step: 0, lambda tokens: None, 0.0)


def frame(body: LinkBody) -> LinkFrame:
    return LinkFrame(
        session=1, view=0, committed=0, committed_digest=Prefix(1).digest, sent_us=0, echo_us=0,
        held_us=2**32 - 1, body=body,
    )  # fmt: skip


DIGEST = Prefix(1).digest
VOTE = Votes(party=0, step=0, digests=(DIGEST,), payloads=(b"",))


@pytest.mark.parametrize(
    ("party", "source", "roles", "body", "sentence"),
    [
        (
            "cloud", "device", speculative(), VOTE,
            "device sent votes, but it has none in mode speculative; check its settings.",
        ),
        (
            "server", "worker-2", federated([0.5, 0.5]), replace(VOTE, party=1),
            "worker-2 sent votes of party 1; check its settings.",
        ),
        (
            "server", "worker-2", federated([0.5, 0.5]), replace(VOTE, party=2, payloads=()),
            "worker-2 sent 0 votes on 1 prefixes; check its version.",
        ),
        (
            "cloud", "device", speculative(), Line(step=0, digest=DIGEST, tokens=tuple(range(17))),
            "A proposal has 1 to 16 tokens (got 17 from device); check its settings.",
        ),
        (
            "device", "cloud", speculative(), Line(step=0, digest=DIGEST, tokens=(1,)),
            "cloud sent a proposal, but it does not draft in mode speculative; check it.",
        ),
        (
            "cloud", "device", speculative(), Commits(step=0, tokens=(1,)),
            "device sent a verdict, but it does not decide in mode speculative; check it.",
        ),
    ],
)  # fmt: skip
def test_what_a_role_does_not_allow_is_refused(
    party: str, source: str, roles: Roles, body: LinkBody, sentence: str
) -> None:
    session = make(party, roles)
    with pytest.raises(ProtocolError) as refused:
        session.receive(source, frame(body), 0.1)
    assert str(refused.value) == sentence
    assert session.links[source].receipts.numbers == []
    if roles.role(source).drafts:
        session.receive(source, frame(Line(step=0, digest=DIGEST, tokens=(1,))), 0.2)
        assert len(session.lines) == 1, "the session goes on"


@pytest.mark.parametrize("roles", ["speculative", "federated-3", "solo"])
def test_the_command_plays_any_roles(roles: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "fuzz", "--runs", "3", "--jobs", "1", "--roles", roles]) == 0
    assert capsys.readouterr().out.startswith("3 runs, ")


def test_unknown_roles_are_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "fuzz", "--runs", "3", "--roles", "federated-4"]) == 1
    assert "There are no roles 'federated-4' to fuzz; did you mean federated-" in capsys.readouterr().err
