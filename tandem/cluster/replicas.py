"""Starts lost decoders of a party again while its others serve: the party's other actors and its sessions stay.

supervisor --lost decoders--> Replacements --a thread each--> create, load, join --> the draft queue gives it sessions
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection

import ray
from ray.exceptions import RayError

from tandem.actors.base import Runtime
from tandem.actors.decoder_pool import decoder_roles
from tandem.actors.ray_handles import find_actor, kill_actors, wrap
from tandem.cluster.launch import create_decoder
from tandem.errors import ClusterError
from tandem.sites.wiring import join_actors

FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 60.0
"""After failures to start, each of which doubles the pause."""
ANSWER_S = 10.0
_log = logging.getLogger("tandem")

Run = Callable[[Callable[[], None]], None]
"""Runs work, in a thread or at once."""


def in_thread(work: Callable[[], None]) -> None:
    """Run work in a thread of its own: loading a model may take minutes."""
    threading.Thread(target=work, name="decoder", daemon=True).start()


class Replacements:
    """The lost decoders of one party, each started again by itself.

    Invariant: a decoder is started by one thread at a time.
    """

    def __init__(
        self, party: str, runtime: Runtime, start: Callable[[str, Runtime, str], None], run: Run = in_thread
    ) -> None:
        """start: what replaces one, by its role."""
        self.num_replaced = 0
        self.problem = ""  # why that failed the last time
        self._party, self._runtime, self._start, self._run = party, runtime, start, run
        self._starting: set[str] = set()
        self._pauses: dict[str, tuple[float, float]] = {}  # after a failure: how long, and until when

    def replace(self, lost: Collection[str]) -> None:
        """Start these decoders again, named by their roles, unless that is under way or has just failed."""
        for role in sorted(lost):
            if role not in self._starting and time.monotonic() >= self._pauses.get(role, (0.0, 0.0))[1]:
                self._starting.add(role)
                self._run(lambda role=role: self._replace(role))  # type: ignore[misc]

    def _replace(self, role: str) -> None:
        try:
            self._start(self._party, self._runtime, role)
            self.num_replaced += 1
            self.problem = ""
            self._pauses.pop(role, None)
            _log.warning("%s/%s was replaced.", self._party, role)
        except Exception as error:  # whatever it is, the next attempt may succeed
            _log.exception("%s/%s could not be replaced", self._party, role)
            self.problem = str(error) or type(error).__name__
            pause_s = min(2 * self._pauses.get(role, (FIRST_PAUSE_S, 0.0))[0], MAX_PAUSE_S)
            self._pauses[role] = (pause_s, time.monotonic() + pause_s)
        finally:
            self._starting.discard(role)


def replace_decoder(party: str, runtime: Runtime, role: str) -> None:
    """Start one decoder of a party whose other actors run. Raises TandemError or RayError; nothing of it runs then."""
    config = runtime.config
    handles = {
        kind: find_actor(f"{party}/{kind}", config.cluster.namespace) for kind in ("retriever", "draft_queue")
    }
    ray.get(handles["draft_queue"].drop_decoder.remote(f"{party}/{role}"), timeout=ANSWER_S)
    known = next(iter(_joined(party, runtime)), None)
    if known is None:
        raise ClusterError(
            f"The {party} has no decoder to compare {party}/{role} with; start it with `tandem up`."
        )
    handles[known] = find_actor(f"{party}/{known}", config.cluster.namespace)
    handles[role] = create_decoder(party, runtime, role, detached=True)
    try:
        joining = join_actors(wrap(handles), [role])
        asyncio.run(asyncio.wait_for(joining, config.cluster.start_timeout_s))
    except BaseException:
        kill_actors([handles[role]])
        raise


def stop_strays(party: str, runtime: Runtime) -> None:
    """Stop decoders that run and get no sessions: whoever started them has died meanwhile."""
    roles = decoder_roles(runtime.config.party(party).num_decoders)
    joined = _joined(party, runtime) if len(roles) > 1 else []
    for role in roles:
        if joined and role not in joined:
            with contextlib.suppress(ValueError):  # there is none
                kill_actors([find_actor(f"{party}/{role}", runtime.config.cluster.namespace)])


def _joined(party: str, runtime: Runtime) -> list[str]:
    """The decoders that get sessions, by their roles; empty where the draft queue does not answer."""
    try:
        queue = find_actor(f"{party}/draft_queue", runtime.config.cluster.namespace)
        names = ray.get(queue.available_decoders.remote(), timeout=ANSWER_S)
    except (ValueError, RayError):
        return []
    return [name.partition("/")[2] for name in names]
