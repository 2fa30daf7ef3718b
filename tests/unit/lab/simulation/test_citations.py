"""Shares of the home's documents under every fault, against an oracle that computes each row of the final tokens anew.

The oracle knows the world's rows, the reference page's weights and the votes; nothing of decoders, messages and time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tandem.aggregation.document_weights import MIN_PROBABILITY, DocumentWeights
from tandem.errors import ProtocolError
from tandem.events import CitationEvent, TokenEvent, cited_tokens
from tandem.messages import Attribution, LinkFrame, Local, RetrieveRequest, Vote, decode, encode
from tandem.modes import SessionSpec, reference
from tandem.modes.tally import Tally
from tandem.protocol.decoding import Attributions, DocumentRow, arrange_rows
from tandem_lab.simulation.fuzz import LIMIT_S, scenario_of
from tandem_lab.simulation.link import Link
from tandem_lab.simulation.scenario import Scenario, voter_of
from tandem_lab.simulation.watched import WatchedRun
from tandem_lab.simulation.world import World
from tests.unit.lab.simulation.world import Case, make_spec, played

CLOSE = 1e-6
"""Masses are float32 numbers."""
NUM_SEEDS = {"dual": 50, "dual-lottery": 24, "federated-3": 16, "federated-3-lottery": 16}


def rows_of(spec: SessionSpec) -> tuple[DocumentRow, ...]:
    """Those of the home."""
    request = RetrieveRequest(session=0, query="", num_documents=spec.num_documents(spec.home))
    return arrange_rows(World(spec.seed, spec.home).retrieve(request), spec.row_layout(spec.home))


def masses(scenario: Scenario, tokens: tuple[int, ...], token: int) -> list[float]:
    """w_d p_d(token) after these tokens, of each document of the home, then of rows without; none where its weights do
    not follow the answer and it has several rows."""
    spec, home = scenario.spec, scenario.spec.home
    world, rows = World(spec.seed, home), rows_of(spec)
    names = list(dict.fromkeys(name for row in rows for name in row.ids))
    if not names or (len(rows) > 1 and spec.evidence_weight == 0):
        return []
    weights = voter_of(scenario, home).weights(tokens)
    total = sum(math.exp(weight) for weight in weights)
    found = [0.0] * (len(names) + 1)
    for number, (row, weight) in enumerate(zip(rows, weights, strict=True)):
        mass = math.exp(weight) / total * max(world.probability(tokens, token, number), MIN_PROBABILITY)
        for name in row.ids or (None,):
            found[len(names) if name is None else names.index(name)] += mass / max(1, len(row.ids))
    return found


def blind_part(scenario: Scenario, event: TokenEvent, probability: float) -> float:
    """The home's part of a token that was decided elsewhere."""
    spec, home = scenario.spec, scenario.spec.home
    most, is_dual = 1.0, spec.roles.drafters == spec.roles.voters
    if is_dual and spec.rules.votes_are_tokens and event.device_accepted != event.cloud_accepted:
        return float(event.device_accepted)
    if is_dual and spec.sampling.temperature == 0 and not event.cloud_accepted:
        most = 0.5
    if spec.weights:
        share = spec.weights[spec.roles.voters.index(home)]
    else:
        share = 1 / sum(spec.num_documents(voter) > 0 for voter in spec.roles.voters)
    if share == 1.0:
        return 1.0
    return share * probability / (share * probability + (1 - share) * most)


def exact_part(scenario: Scenario, event: TokenEvent, tokens: tuple[int, ...]) -> float:
    """The home's part of a token that it decided itself, by the votes of all in full."""
    spec = scenario.spec
    if len(event.shares) == 1:
        return event.shares.get(spec.home, 0.0)
    if spec.rules.votes_are_tokens:
        voters = spec.roles.voters
        known = [event.shares[voter] for voter in voters] if event.shares else [1.0]
        return float(voters[reference.owner(known, spec.seed, event.step)] == spec.home)
    said = {
        party: share * voter_of(scenario, party)(tokens).probabilities[event.token]
        for party, share in event.shares.items()
    }
    return said[spec.home] / sum(said.values())


def check(run: WatchedRun) -> Counter[str]:
    """Every share of a run. Returns what was seen."""
    scenario, spec, seen = run.scenario, run.scenario.spec, Counter[str]()
    events = cited_tokens(run.outcome.events)
    tokens = tuple(event.token for event in events)
    seen["late"] = len(run.outcome.of(CitationEvent))
    for step, event in enumerate(events):
        found, before = masses(scenario, tokens[:step], event.token), tokens[:step]
        is_own = event.aggregator == spec.home
        if event.citation is None:
            accepted = event.device_accepted if spec.roles.role(spec.home).drafts else False
            is_last = step == len(tokens) - 1
            assert not found or (is_last and not accepted), "only the last token may be fed to nobody"
            seen["unknown"] += 1
            continue
        shares = event.citation
        assert math.isclose(sum(shares.documents) + shares.others + shares.nobody, 1.0, abs_tol=CLOSE)
        part = 1.0 - shares.others
        if is_own:
            exact = exact_part(scenario, event, before)
            assert part <= exact + CLOSE, "more than its own"
            if not spec.rules.has_race_lists:
                assert math.isclose(part, exact, abs_tol=CLOSE)
            seen["exact" if abs(part - exact) < CLOSE else "bounded"] += 1
        elif found:
            rows_follow = spec.evidence_weight > 0 and spec_moves(scenario)
            probability = min(1.0, sum(found)) if rows_follow else 1.0
            assert math.isclose(part, blind_part(scenario, event, probability), abs_tol=CLOSE)
            seen["elsewhere"] += 1
        if part and found:
            wanted = [part * mass / sum(found) for mass in found[:-1]]
            assert shares.documents == pytest.approx(wanted, abs=CLOSE)
            seen["several"] += len(wanted) > 1
    return seen


def spec_moves(scenario: Scenario) -> bool:
    """Whether the home's weights can matter."""
    spec = scenario.spec
    num_reading = sum(spec.num_documents(voter) > 0 for voter in spec.roles.voters)
    return len(rows_of(spec)) > 1 or (spec.roles.weighs_by_documents and num_reading > 1)


def runs(roles: str, seeds: range) -> Iterator[WatchedRun]:
    for seed in seeds:
        scenario = replace(scenario_of(seed, roles), is_rounding=False)
        if scenario.spec.num_documents(scenario.spec.home) == 0:
            continue
        run = WatchedRun(scenario)
        run.run(LIMIT_S)
        yield run


@pytest.mark.parametrize("roles", NUM_SEEDS)
def test_shares_are_those_of_rows_that_are_computed_anew(roles: str) -> None:
    seen = Counter[str]()
    for run in runs(roles, range(NUM_SEEDS[roles])):
        seen += check(run)
        seen += Counter({f"run with {name}": 1 for name, number in run.counts.items() if number})
    is_dual = roles.startswith("dual")
    assert seen["several"] > 15
    assert (seen["exact"] > 50) == is_dual
    assert seen["elsewhere"] > 10
    if roles == "dual":
        assert seen["late"] > 20, "tokens that were not the home's own draft"
        assert seen["bounded"] < seen["exact"] / 4
        assert seen["run with crashes"] + seen["run with host crashes"] > 3


def test_a_home_without_vote_or_documents_cites_nothing() -> None:
    for seed in range(4):
        for roles in ("speculative", "federated-2"):
            run = played(scenario_of(seed, roles))
            is_voter = run.spec.home in run.spec.roles.voters
            assert is_voter or not any(
                event.citation and not event.is_alone for event in cited_tokens(run.outcome.events)
            )


# ---- planted defects ---------------------------------------------------------------------------------------------


def weights_after_the_token(patch: pytest.MonkeyPatch) -> None:
    """The weights of the next step are those by which the token is told."""
    original = DocumentWeights.masses

    def late(self: DocumentWeights, weights: Any, token: Any) -> Any:
        moved = tuple(weight + self.evidence * each for weight, each in zip(weights, token, strict=True))
        return original(self, moved, token)

    patch.setattr(DocumentWeights, "masses", late)


def off_by_one_step(patch: pytest.MonkeyPatch) -> None:
    """A token has the shares of the one before it."""
    original, last = Attributions.add, dict[int, Attribution]()

    def add(self: Attributions, said: Attribution) -> None:
        before = last.get(id(self), said)
        last[id(self)] = said
        original(self, replace(said, masses=before.masses))

    patch.setattr(Attributions, "add", add)


def told_once(patch: pytest.MonkeyPatch) -> None:
    """What was told of a rejected branch counts for the branch that replaced it."""
    original = Attributions.add

    def add(self: Attributions, said: Attribution) -> None:
        known = vars(self).setdefault("by_step", {})
        original(self, replace(said, masses=known.setdefault(said.step, said).masses))

    patch.setattr(Attributions, "add", add)


def votes_do_not_count(patch: pytest.MonkeyPatch) -> None:
    """Each party said a token as much as its weight, whatever its vote was."""
    original = Tally.weigh
    patch.setattr(Tally, "weigh", lambda self, said: original(self, [1.0] * len(said)))


@pytest.mark.parametrize("plant", [weights_after_the_token, off_by_one_step, told_once, votes_do_not_count])
def test_planted_defects_are_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        list(map(check, runs("dual", range(40))))


# ---- what does not depend on shares --------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", ["device", "cloud", "mirror", "greedy"])
def test_nothing_more_crosses_the_link(placement: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the frame and to the byte, and the answer is the same."""
    spec = make_spec(3, placement=placement, device_documents=2, cloud_documents=3, evidence_weight=1.0)
    case = Case(spec, Link(delay_s=0.02))
    cited = case.run()
    assert any(token.citation for token in cited_tokens(cited.events))
    monkeypatch.setattr(Attributions, "add", lambda self, said: None)
    bare = case.run()
    assert (bare.num_frames, bare.num_bytes, bare.tokens) == (cited.num_frames, cited.num_bytes, cited.tokens)


def test_no_frame_of_the_link_can_hold_what_documents_said() -> None:
    said = Attribution(step=0, digest=bytes(8), masses=(0.5, 0.5))
    vote = Vote(step=0, digest=bytes(8), tokens=(1,))
    local = Local(session=1, body=vote, attributions=(said,))
    assert decode(encode(local)) == local
    header = {"session": 1, "view": 0, "committed": 0, "committed_digest": bytes(8), "stamp": 1, "echo": 0}
    frame = encode(LinkFrame(**header, held_us=0, body=vote))
    with pytest.raises(ProtocolError):
        decode(frame + encode(said))
    with pytest.raises(ProtocolError):
        decode(encode(LinkFrame(**header, held_us=0, body=said)))
