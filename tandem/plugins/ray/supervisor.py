"""Starts a party on a cluster that runs, and keeps it up: what has died is started again without a user.

    `tandem up` --> the actors of the party, and PARTY/supervisor
    supervisor --finds one that runs no more--> replaces it --> has the draft queues of the parties meet

The others keep what they have loaded; sessions end by the rules for a lost actor or peer. Where that fails, or a
supervisor that was restarted finds it half done, all are replaced, as `tandem up` does it. The supervisor itself is
restarted by Ray, with what it was created with; it has no other state. It runs on the party's node and goes with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import threading
import time
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayError

from tandem.actors.base import Runtime
from tandem.config.schema import Config
from tandem.errors import ClusterError, TandemError
from tandem.plugins.ray.actors import (
    ANSWER_S,
    SUPERVISOR,
    RayActor,
    RayActors,
    create_party,
    explain_party,
    find_actor,
    find_party,
    kill_actors,
    options_of,
    party_nodes,
    read_actors,
    running_actors,
    runtime_for,
)
from tandem.plugins.ray.attach import wait_for_roles
from tandem.protocol.routes import ROLES
from tandem.sites.port import Progress
from tandem.sites.startup import connect_parties, join_actors, start_actors

WATCH_S = 1.0
"""Between two looks at who runs."""
MAX_PAUSE_S = 60.0
"""The same after failures to start, each of which doubles it."""
MEET_S = 10.0
"""For the draft queues of the parties to connect; then they are tried again."""
_log = logging.getLogger("tandem")


class Supervisor:
    """Keeps one party's actors running: a Ray actor with a thread that looks after them."""

    def __init__(self, party: str, runtime: Runtime) -> None:
        """It begins when `watch` is called, or at once where Ray has restarted it."""
        self.num_replaced = 0  # how often actors were replaced
        self.problem = ""  # why that failed the last time
        self.is_whole: bool | None = True  # None: a replacement may have broken off
        self._party, self._runtime = party, runtime
        self._has_met = False  # the draft queues of the party and of all its peers know their addresses
        self._pause_s = WATCH_S
        self._thread = threading.Thread(target=self._look_forever, name="watch", daemon=True)
        if ray.get_runtime_context().was_current_actor_reconstructed:
            self.is_whole = None
            self.watch()

    def secret(self) -> bytes:
        """The data plane's secret, for the other party when it starts."""
        return self._runtime.secret

    def watch(self) -> None:
        """The party is up: keep it so. It may be called again."""
        with contextlib.suppress(RuntimeError):  # one that Ray has restarted meanwhile looks already
            self._thread.start()

    def report(self) -> dict[str, Any]:
        """Its process, how often it replaced the party's actors, and why that failed the last time."""
        return {"pid": os.getpid(), "num_replaced": self.num_replaced, "problem": self.problem}

    def _look_forever(self) -> None:
        while True:
            time.sleep(self.look())

    def look(self) -> float:
        """Replace the actors that run no more, and have the parties meet; returns the seconds until the next look."""
        try:
            if self.is_whole is None:
                self.is_whole = is_complete(self._party, self._runtime.config)
            up = running_roles(self._party, self._runtime.config)
            lost = set(ROLES) - up
            if lost or not self.is_whole:
                among = lost if self.is_whole and up else None
                self.is_whole = self._has_met = False
                replace_actors(self._party, self._runtime, among)
                self.is_whole = True
                self.num_replaced += 1
                _log.warning(
                    "Of the %s %s were replaced.", self._party, ", ".join(sorted(among or ())) or "all"
                )
            self._has_met = self._has_met or self._meet()
            self.problem, self._pause_s = "", WATCH_S
        except Exception as error:  # whatever it is, the next attempt may succeed
            _log.exception("The actors of the %s could not be replaced", self._party)
            self.problem, self._pause_s = str(error), min(2 * self._pause_s, MAX_PAUSE_S)
        return self._pause_s

    def _meet(self) -> bool:
        """Have the draft queues of the party and of its peers that are up connect; whether that were all."""
        config = self._runtime.config
        linked = {self._party, *config.topology.peers(self._party)}
        parties: dict[str, RayActors] = {}
        for party in filter(linked.__contains__, config.parties):
            with contextlib.suppress(ClusterError):  # it is not up, or is being replaced itself
                parties[party] = find_party(party, config)
        if self._party not in parties or len(parties) == 1:
            return False
        try:
            asyncio.run(asyncio.wait_for(connect_parties(parties, config.topology), MEET_S))
        except (TandemError, TimeoutError):
            return False
        return len(parties) == len(linked)


def start_party(role: str, config: Config, progress: Progress = lambda line: None) -> None:
    """Start a side on a cluster that this process is attached to, in the place of what is left of it; it is kept up."""
    if not ray.is_initialized():
        raise ClusterError("This process is not connected to a cluster; call attach() first.")
    if explain_party(role, read_actors(config, (role,)), config) is None:
        raise ClusterError(
            f"The {role} side of this cluster is already up. Ask it with `tandem ask`, or stop it with `tandem down` "
            "on its machine."
        )
    stop_actors(role, [SUPERVISOR], config)
    wait_for_roles((role,), config.cluster.start_timeout_s, lambda: None)
    host = config.link.host or str(party_nodes(role)[0]["NodeManagerAddress"])
    runtime = runtime_for(config, _shared_secret(role, config), host)
    supervisor = _create(role, runtime)
    try:
        replace_actors(role, runtime, progress=progress)
        ray.get(supervisor.start("watch"), timeout=config.cluster.start_timeout_s)
    except BaseException:
        kill_actors([supervisor])
        raise


def replace_actors(
    party: str,
    runtime: Runtime,
    lost: Collection[str] | None = None,
    progress: Progress = lambda line: None,
) -> None:
    """Start a party's actors; what is left of earlier ones is stopped first, so that their names are free.

    lost: only these, by role, while the others of the party stay; None: all. Raises TandemError or RayError; nothing of
    what was started runs then.
    """
    config = runtime.config
    others = {} if lost is None else find_serving(party, config)
    stop_actors(party, running_roles(party, config) if lost is None else lost, config)
    if lost and "draft_queue" in others:  # whether its connections to them have noticed or not
        ray.get([others["draft_queue"].start("drop", f"{party}/{role}") for role in lost], timeout=ANSWER_S)
    handles = create_party(party, runtime, is_detached=True, roles=lost)
    try:
        if lost is None:
            starting: Any = start_actors({party: handles}, config, progress)
        else:
            starting = join_actors({**others, **handles}, list(handles))
        asyncio.run(asyncio.wait_for(starting, config.cluster.start_timeout_s))
    except BaseException:
        kill_actors(handles.values())
        raise


def is_complete(party: str, config: Config) -> bool:
    """Whether all actors of a party that run are ready. Raises RayError or ValueError if one has just died."""
    serving = find_serving(party, config)
    return running_roles(party, config) <= serving.keys()


def find_serving(party: str, config: Config) -> RayActors:
    """Those of a party's actors that others can connect to. Raises RayError or ValueError if one has just died."""
    roles = running_roles(party, config)
    handles = {role: find_actor(f"{party}/{role}", config.cluster.namespace) for role in sorted(roles)}
    asked = {handle.start("is_prepared"): role for role, handle in handles.items()}
    if not asked:
        return {}
    answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=ANSWER_S)
    return {asked[answer]: handles[asked[answer]] for answer in answered if ray.get(answer)}


def running_roles(party: str, config: Config) -> set[str]:
    """The actors of a party that live or start, by role."""
    names = (name.split("/") for name in running_actors(config))
    return {role for owner, role in names if owner == party and role != SUPERVISOR}


def stop_actors(party: str, roles: Collection[str], config: Config) -> None:
    """Stop actors of a party, of which some may have ended already."""
    for role in roles:
        with contextlib.suppress(ValueError):  # there is none of that name
            kill_actors([find_actor(f"{party}/{role}", config.cluster.namespace)])


def _create(party: str, runtime: Runtime) -> RayActor:
    """The supervisor of a party, on its node; it starts in parallel to whatever follows."""
    options = options_of(party, [SUPERVISOR], runtime.config, is_detached=True)
    actor = ray.remote(Supervisor).options(**options, max_restarts=-1, max_task_retries=-1)
    return RayActor(actor.remote(party, replace(runtime, config=runtime.config.seen_by(party))))


def _shared_secret(party: str, config: Config) -> bytes:
    """The data plane's secret: that of a party that is up, otherwise a new one."""
    for other in config.parties:
        if other == party:
            continue
        with contextlib.suppress(ValueError, RayError):  # there is none, or it has just died
            supervisor = find_actor(f"{other}/{SUPERVISOR}", config.cluster.namespace)
            secret: Any = ray.get(supervisor.start("secret"))
            return bytes(secret)
    return secrets.token_bytes(32)
