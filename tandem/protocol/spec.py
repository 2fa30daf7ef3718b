"""What both sides must know of one query, in a form that travels on the control plane.

Knows nothing of how a value was chosen: defaults live in `tandem.config`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Literal

from tandem.topology import PARTIES, Party

PeerLoss = Literal["continue", "wait", "fail"]
_TUPLES = ("eos_token_ids", "stop_strings", "device_decode_line", "cloud_decode_line")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSpec:
    """One query. Both sides hold the same spec, but the cloud not the device's filter (`as_for`)."""

    session: int  # 32 bits, names the query on the link
    query: str
    seed: int  # 64 bits; with the documents found, models and codec it determines the answer
    draft_rule: str = "coupled"  # or "algorithm1"
    temperature: float = 0.0
    placement: str = "device"
    synchronous: bool = False  # token-wise loop: no draft before the previous token is committed (DRDG/TW)
    max_new_tokens: int = 64
    eos_token_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    device_documents: int = 4  # documents to retrieve
    cloud_documents: int = 16
    relevance_scale: float = 10.0  # R(d, x) = scale * score
    weight_interval: int = 3  # n, tokens between re-estimations; 0: static weights
    weight_lag: int = 1  # tokens between a re-estimation and its first use
    weight_momentum: float = 0.0  # share of the previous score that is kept
    max_window: int = 16  # drafts past the last committed token, at most
    on_peer_loss: PeerLoss = "continue"
    peer_loss_margin_s: float = 1.0  # silence allowed beyond max(4 RTT, 0.5 s)
    device_decode_line: tuple[
        float, ...
    ] = ()  # of the offline profile (`profiler.line`); empty: there is none
    cloud_decode_line: tuple[float, ...] = ()
    alone: Party | None = (
        None  # this side answers by itself and nothing crosses the link; None: both together
    )
    device_filter: str = ""  # metadata that the documents of a side must have: a JSON object; empty: any
    cloud_filter: str = ""
    provisional: bool = False  # the user is told the telling side's drafts before they are committed

    @property
    def first_aggregator(self) -> Party:
        """Who decides step 0. Under `mirror` both do; the device's word counts after a loss. `greedy` begins on the
        device."""
        if self.alone is not None:
            return self.alone
        return Party.CLOUD if self.placement == "cloud" else Party.DEVICE

    @property
    def parties(self) -> tuple[Party, ...]:
        """Who takes part."""
        return PARTIES if self.alone is None else (self.alone,)

    @property
    def home(self) -> Party:
        """Whose draft queue keeps the events for the user: the device's, unless the cloud answers alone."""
        return self.alone or Party.DEVICE

    def num_documents(self, party: Party) -> int:
        """Documents to retrieve on `side`."""
        return self.device_documents if party is Party.DEVICE else self.cloud_documents

    def filter(self, party: Party) -> str:
        """Metadata that `side`'s documents must have: a JSON object, or nothing."""
        return self.device_filter if party is Party.DEVICE else self.cloud_filter

    def as_for(self, party: Party) -> SessionSpec:
        """What `side` may see of it: metadata of private documents stay on the device."""
        return self if party is Party.DEVICE else replace(self, device_filter="")

    def decode_line(self, party: Party) -> tuple[float, ...]:
        """The offline profile of `side`'s decode time."""
        return self.device_decode_line if party is Party.DEVICE else self.cloud_decode_line

    def drafts_travel_from(self, party: Party) -> bool:
        """Whether the peer needs this side's drafts: not where this side alone aggregates for good."""
        return self.alone is None and self.placement != party.value

    def to_json(self) -> str:
        """For the control plane and for `Begin`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> SessionSpec:
        """Inverse of `to_json`."""
        values = json.loads(text)
        for name in _TUPLES:
            values[name] = tuple(values[name])
        values["alone"] = None if values["alone"] is None else Party(values["alone"])
        return cls(**values)
