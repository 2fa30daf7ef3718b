"""What both sides must know of one query, in a form that travels on the control plane.

Knows nothing of how a value was chosen: defaults live in `tandem.config`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal

from tandem.side import Side

PlacementName = Literal["device", "cloud", "greedy", "mirror", "random"]
PeerLoss = Literal["continue", "wait", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSpec:
    """One query. Both sides hold the same spec."""

    session: int  # 32 bits, names the query on the link
    query: str
    seed: int  # 64 bits; with documents, models and codec it determines the answer
    draft_rule: str = "coupled"  # or "algorithm1"
    temperature: float = 0.0
    placement: PlacementName = "device"
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

    @property
    def first_aggregator(self) -> Side:
        """Who decides step 0. Under `mirror` both do; the device's word counts after a loss. `greedy` and `random`
        begin on the device."""
        return Side.CLOUD if self.placement == "cloud" else Side.DEVICE

    def num_documents(self, side: Side) -> int:
        """Documents to retrieve on `side`."""
        return self.device_documents if side is Side.DEVICE else self.cloud_documents

    def decode_line(self, side: Side) -> tuple[float, ...]:
        """The offline profile of `side`'s decode time."""
        return self.device_decode_line if side is Side.DEVICE else self.cloud_decode_line

    def drafts_travel_from(self, side: Side) -> bool:
        """Whether the peer needs this side's drafts: not where this side alone aggregates for good."""
        return self.placement != side.value

    def to_json(self) -> str:
        """For the control plane and for `Begin`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> SessionSpec:
        """Inverse of `to_json`."""
        values = json.loads(text)
        for name in ("eos_token_ids", "stop_strings", "device_decode_line", "cloud_decode_line"):
            values[name] = tuple(values[name])
        return cls(**values)
