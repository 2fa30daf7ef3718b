"""Policies of proposal lengths by name, and those of one's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from tandem.config.extensions import Parameters, call, check_has, is_extension
from tandem.errors import ConfigError
from tandem.scheduler.double_dqn import DoubleDqn
from tandem.scheduler.proposal_length import BestLength, FixedLength, LastAccepted, LengthPolicy

LOADED: dict[str, Callable[[int], LengthPolicy]] = {}
"""Policies of one's own in this process, by the name that its settings gave."""


def make_length_policy(name: str, max_length: int) -> LengthPolicy:
    """A policy for one query. max_length: tokens of its longest proposal.

    Raises ConfigError for a policy of one's own that this process has not loaded.
    """
    match name:
        case "fixed":
            return FixedLength(max_length)
        case "best":
            return BestLength()
        case "last_accepted":
            return LastAccepted()
        case "double_dqn":
            return DoubleDqn()
    if name not in LOADED:
        raise ConfigError(
            f"The length policy {name!r} is not loaded here; name it as decoding.length_policy in the settings of the "
            "device and start it again."
        )
    return LOADED[name](max_length)


def load_length_policy(name: str, parameters: Parameters, where: str) -> None:
    """Load the policy that a party's own settings name, for `make_length_policy`; nothing if it is built in.

    Only settings load code: the policy of a query may come from another machine. where: the loading process, in words.
    Raises ConfigError.
    """
    if not is_extension(name):
        if parameters:
            raise ConfigError(
                f"scheduler.length_parameters is for a length policy of your own, but decoding.length_policy is "
                f"{name!r} and the table holds {', '.join(parameters)}; remove it."
            )
        return
    setting, table = "decoding.length_policy", "scheduler.length_parameters"

    def make(max_length: int) -> LengthPolicy:
        policy = call(setting, name, parameters, table, where, max_length=max_length)
        check_has(policy, ("choose", "observe"), setting, name, "length policy")
        return cast(LengthPolicy, policy)

    make(1)
    LOADED[name] = make


def own_length_policy(name: str) -> str:
    """The name of a policy of one's own; empty for a built-in one."""
    return name if is_extension(name) else ""
