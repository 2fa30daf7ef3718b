"""The table of modes, and sessions that it does not allow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tandem.errors import ConfigError
from tandem.modes.roles import MODES, Role, check, dual, federated, solo, speculative
from tandem.topology import PAIR, star


def test_four_modes() -> None:
    assert [mode.name for mode in MODES] == ["dual", "solo", "speculative", "federated"]
    assert [mode.has_bonus for mode in MODES] == [False, False, True, True]


def test_who_does_what() -> None:
    roles = dual()
    assert roles.drafters == roles.voters == ("device", "cloud")
    assert roles.deciders == ("device",)
    assert dual(decides="both").deciders == ("device", "cloud")
    assert (solo("cloud").voters, solo("cloud").topology.home) == (("cloud",), "cloud")
    roles = speculative()
    assert (roles.drafters, roles.voters, roles.deciders) == (("device",), ("cloud",), ("cloud",))
    roles = federated([0.5, 0.25, 0.25])
    assert (roles.drafters, roles.deciders) == (("server",), ("server",))
    assert roles.voters == ("worker-1", "worker-2", "worker-3")
    assert roles.weights == (0.5, 0.25, 0.25)
    assert roles.role("server") == Role(drafts=True, decides=True)
    assert not roles.weighs_by_documents
    roles = federated((), workers=("ada", "ben"))
    assert (roles.voters, roles.weights, roles.weighs_by_documents) == (("ada", "ben"), (None, None), True)
    assert (dual().weighs_by_documents, solo("device").weighs_by_documents) == (True, False)


@pytest.mark.parametrize(
    ("mode", "roles", "sentence"),
    [
        ("duel", (Role(), Role()), "There is no mode 'duel'; did you mean dual?"),
        ("dual", (Role(),), "Each of 2 parties needs a role (got 1); give that many."),
        (
            "dual",
            (Role(drafts=True, votes=True, decides=True), Role(votes=True)),
            "Mode dual has 2 drafters (got device); change the roles.",
        ),
        (
            "speculative",
            (Role(drafts=True, votes=True, weight=1.0, decides=True), Role()),
            "In mode speculative a drafter has no vote, but device has one; change its role.",
        ),
        (
            "speculative",
            (Role(drafts=True), Role(votes=True, weight=1.0)),
            "Mode speculative has 1 decider (got none); change the roles.",
        ),
        (
            "speculative",
            (Role(drafts=True), Role(votes=True, decides=True)),
            "In mode speculative each voter has a weight of at least 0 (got none); give it.",
        ),
        (
            "speculative",
            (Role(drafts=True), Role(votes=True, decides=True, weight=0.9)),
            "The weights of the voters have sum 1 (got 0.9); scale them.",
        ),
        (
            "dual",
            (
                Role(drafts=True, votes=True, decides=True, weight=0.5),
                Role(drafts=True, votes=True, weight=0.5),
            ),
            "In mode dual documents decide how much a party counts (got 0.5, 0.5); leave the weights out.",
        ),
        (
            "federated",
            (Role(drafts=True, decides=True), Role(votes=True, weight=1.0)),
            "Mode federated has 2 or more voters (got cloud); change the roles.",
        ),
    ],
)
def test_a_session_that_no_mode_allows_is_refused(mode: str, roles: tuple[Role, ...], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check(replace(dual(), mode=mode, topology=PAIR, roles=roles))
    assert str(refused.value) == sentence


def test_weights_are_all_fixed_or_all_by_documents() -> None:
    roles = federated([0.5, 0.5])
    mixed = (roles.roles[0], Role(votes=True, weight=1.0), Role(votes=True))
    with pytest.raises(ConfigError) as refused:
        check(replace(roles, roles=mixed))
    assert str(refused.value) == (
        "In mode federated each voter has a weight of at least 0 (got 1, none); give it."
    )


def test_a_decider_takes_part() -> None:
    workers = (Role(votes=True, weight=0.5), Role(votes=True, weight=0.5))
    roles: tuple[Any, ...] = (Role(decides=True), Role(drafts=True), *workers)
    topology = star("server", ("drafter", "a", "b"))
    with pytest.raises(ConfigError) as refused:
        check(replace(federated([0.5, 0.5]), topology=topology, roles=roles))
    assert str(refused.value) == (
        "In mode federated a decider drafts or votes, but server does neither; change its role."
    )
