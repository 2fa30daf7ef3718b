"""Starts a party on a cluster that runs, and keeps it up: what has died is started again without a user.

    `tandem up` --> the six actors of the party, and PARTY/supervisor
    supervisor --finds one dead in Ray's table--> replaces it --> has the draft queues of the parties meet
    supervisor --finds one of several decoders dead--> replaces it while it looks on (`tandem.cluster.replicas`)

The others keep what they have loaded; sessions end by the rules for a lost actor or peer. Where that fails, or a
supervisor that was restarted finds it half done, all six are replaced, as `tandem up` does it. The supervisor itself is
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
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayError

from tandem.actors.base import Runtime
from tandem.actors.decoder_pool import decoder_roles
from tandem.actors.handles import Handles
from tandem.actors.ray_handles import RayHandles, find_actor, kill_actors, wrap
from tandem.cluster import nodes
from tandem.cluster.actor_table import SUPERVISOR, explain_party, read_actors
from tandem.cluster.attach import wait_for_roles
from tandem.cluster.launch import are_prepared, create_party, find_party, runtime_for
from tandem.cluster.placement import at_home, party_nodes
from tandem.cluster.replicas import Replacements, Run, in_thread, replace_decoder, stop_strays
from tandem.config.schema import Config
from tandem.errors import ClusterError, TandemError
from tandem.protocol.outbox import ROLES
from tandem.sites.deployment import Progress
from tandem.sites.status import ActorState
from tandem.sites.wiring import connect_parties, join_actors, start_actors

WATCH_S = 1.0
"""Between two looks at Ray's table."""
MAX_PAUSE_S = 60.0
"""The same after failures to start, each of which doubles it."""
MEET_S = 10.0
"""For the draft queues of the parties to connect; then they are tried again."""
_log = logging.getLogger("tandem")


class Supervisor:
    """Keeps one party's actors running: a Ray actor with a thread that looks after them."""

    def __init__(self, party: str, runtime: Runtime) -> None:
        """It begins when `watch` is called, or at once where Ray has restarted it."""
        self._secret = runtime.secret
        self._watch = Watch(party, runtime)
        self._thread = threading.Thread(target=self._look_forever, name="watch", daemon=True)
        if ray.get_runtime_context().was_current_actor_reconstructed:
            self._watch.is_whole = None
            self.watch()

    def secret(self) -> bytes:
        """The data plane's secret, for the other party when it starts."""
        return self._secret

    def watch(self) -> None:
        """The party is up: keep it so. It may be called again."""
        with contextlib.suppress(
            RuntimeError
        ):  # it looks already, as one does that Ray has restarted meanwhile
            self._thread.start()

    def report(self) -> dict[str, Any]:
        """Its process, how often it replaced the party's actors, and why that failed the last time."""
        watch = self._watch
        return {
            "pid": os.getpid(),
            "num_replaced": watch.num_replaced,
            "num_decoders_replaced": watch.replacements.num_replaced,
            "problem": watch.problem or watch.replacements.problem,
        }

    def _look_forever(self) -> None:
        while True:
            time.sleep(self._watch.look())


class Watch:
    """What a supervisor does, one look at the party after the other."""

    def __init__(self, party: str, runtime: Runtime, run: Run = in_thread) -> None:
        """run: see `Replacements`."""
        self.num_replaced = 0  # times that the party's actors were
        self.replacements = Replacements(party, runtime, replace_decoder, run)
        self.problem = ""  # why that failed the last time
        self.is_whole: bool | None = True  # None: not known, since a replacement may have broken off
        self._party, self._runtime = party, runtime
        self._has_met = (
            False  # the draft queues of the party and of all its peers know each other's addresses
        )
        self._pause_s = WATCH_S

    def look(self) -> float:
        """Replace the actors that are dead, and have the parties meet; returns the seconds until the next look."""
        try:
            if self.is_whole is None:
                self.is_whole = self._is_prepared()
                stop_strays(self._party, self._runtime)
            dead = self._dead_roles()
            lost = dead if dead >= self._decoders else dead - self._decoders
            if not self.is_whole or lost:
                among = None if not self.is_whole or lost >= {*ROLES} else lost
                self.is_whole = self._has_met = False
                replace_actors(self._party, self._runtime, among)
                self.num_replaced += 1
                _log.warning("Of the %s %s were replaced.", self._party, ", ".join(sorted(among or ROLES)))
                self.is_whole, dead = True, set() if among is None else dead - among
            self.replacements.replace(dead)
            self._has_met = self._has_met or self._meet()
            self.problem, self._pause_s = "", WATCH_S
        except Exception as error:  # whatever it is, the next attempt may succeed
            _log.exception("The actors of the %s could not be replaced", self._party)
            self.problem, self._pause_s = str(error), min(2 * self._pause_s, MAX_PAUSE_S)
        return self._pause_s

    @property
    def _decoders(self) -> set[str]:
        return set(decoder_roles(self._runtime.config.party(self._party).num_decoders))

    def _dead_roles(self) -> set[str]:
        """The actors that neither live nor start, by role."""
        return {*ROLES, *self._decoders} - self._roles_up()

    def _roles_up(self) -> set[str]:
        return {actor.kind for actor in self._read_actors() if actor.state not in ("dead", "absent")}

    def _read_actors(self) -> Sequence[ActorState]:
        return read_actors(self._runtime.config, (self._party,))

    def _is_prepared(self) -> bool:
        """Whether all that live or start are ready; one of several decoders may be a stray."""
        strays = self._decoders if len(self._decoders) > 1 else set()
        return self._roles_up() - strays <= find_serving(self._party, self._runtime.config).keys()

    def _meet(self) -> bool:
        """Have the draft queues of the party and of its peers that are up connect; whether that were all."""
        config = self._runtime.config
        wanted = {self._party, *config.topology.peers(self._party)}
        parties: dict[str, Handles] = {}
        for party in config.parties:
            with contextlib.suppress(ClusterError):  # it is not up, or is being replaced itself
                if party in wanted:
                    parties[party] = wrap(find_party(party, config))
        if self._party not in parties or len(parties) == 1:
            return False
        try:
            asyncio.run(asyncio.wait_for(connect_parties(parties, config.topology), MEET_S))
        except (TandemError, TimeoutError):
            return False
        return len(parties) == len(wanted)


def start_party(role: str, config: Config, progress: Progress = lambda line: None) -> None:
    """Start a side on a cluster that this process is attached to; it outlives this process, and is kept up.

    What is left of a side that has lost actors is stopped first.
    """
    if not ray.is_initialized():
        raise ClusterError("This process is not connected to a cluster; call attach() first.")
    if explain_party(role, read_actors(config, (role,)), config) is None:
        raise ClusterError(
            f"The {role} side of this cluster is already up. Ask it with `tandem ask`, or stop it with `tandem down` "
            "on its machine."
        )
    stop_supervisor(role, config)
    wait_for_roles((role,), config.cluster.start_timeout_s, lambda: None)
    host = config.link.host or str(party_nodes(role)[0]["NodeManagerAddress"])
    runtime = runtime_for(config, _shared_secret(role, config), host)
    supervisor = _create(role, runtime)
    try:
        replace_actors(role, runtime, progress=progress)
        ray.get(supervisor.watch.remote(), timeout=config.cluster.start_timeout_s)
    except BaseException:
        kill_actors([supervisor])
        raise


def stop_supervisor(party: str, config: Config) -> None:
    """Leave a party to itself."""
    with contextlib.suppress(ValueError):  # there is none
        kill_actors([find_actor(f"{party}/{SUPERVISOR}", config.cluster.namespace)])


def replace_actors(
    party: str,
    runtime: Runtime,
    lost: Collection[str] | None = None,
    progress: Progress = lambda line: None,
) -> None:
    """Start a party's actors; what is left of earlier ones is stopped first, so that their names are free.

    lost: only these, by role, while the others of the party stay; None: all.
    """
    config = runtime.config
    others = {} if lost is None else find_serving(party, config)
    for actor in read_actors(config, (party,)):
        if lost is None or actor.kind in lost:
            with contextlib.suppress(ValueError):  # there is none of that name
                kill_actors([find_actor(actor.name, config.cluster.namespace)])
    handles = create_party(party, runtime, detached=True, wanted=lost)
    try:
        if lost is None:
            starting: Any = start_actors({party: wrap(handles)}, progress)
        else:
            starting = join_actors(wrap(others | handles), list(handles))
        asyncio.run(asyncio.wait_for(starting, config.cluster.start_timeout_s))
    except BaseException:
        kill_actors(handles.values())
        raise


def find_serving(party: str, config: Config) -> RayHandles:
    """Those of a party's actors that others can connect to. Raises RayError or ValueError if one has just died."""
    handles = {
        actor.kind: find_actor(actor.name, config.cluster.namespace)
        for actor in read_actors(config, (party,))
        if actor.is_alive
    }
    prepared = zip(handles.items(), are_prepared(handles.values()), strict=True)
    return {role: handle for (role, handle), is_prepared in prepared if is_prepared}


def _create(party: str, runtime: Runtime) -> Any:
    """The supervisor of a party, on its node; it starts in parallel to whatever follows."""
    options: dict[str, Any] = {
        "name": f"{party}/{SUPERVISOR}",
        "namespace": runtime.config.cluster.namespace,
        "num_cpus": 0,
        "resources": {nodes.PARTY_RESOURCE.format(party=party): 0.001},
        "scheduling_strategy": at_home(party),
        "lifetime": "detached",
        "max_restarts": -1,
        "max_task_retries": -1,
        "enable_task_events": False,
    }
    seen = replace(runtime, config=runtime.config.seen_by(party))
    return ray.remote(Supervisor).options(**options).remote(party, seen)


def _shared_secret(party: str, config: Config) -> bytes:
    """The data plane's secret: that of a party that is up, otherwise a new one."""
    for other in config.parties:
        if other == party:
            continue
        with contextlib.suppress(ValueError, RayError):  # there is none, or it has just died
            supervisor = find_actor(f"{other}/{SUPERVISOR}", config.cluster.namespace)
            secret: Any = ray.get(supervisor.secret.remote())
            return bytes(secret)
    return secrets.token_bytes(32)
