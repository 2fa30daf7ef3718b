"""What the model of pacings is given, and what it tells: a link with two models, and the times of one answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, nan
from typing import Literal

from tandem.scheduler.lengths import RoundCosts
from tandem_lab.numbers import ratio

Pacing = Literal["stop_and_wait", "pipelined", "cloud_goes_on"]
PACINGS: tuple[Pacing, ...] = ("stop_and_wait", "pipelined", "cloud_goes_on")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """A link, two models, and the sizes of frames. Frames count with all headers, as a capture sees them."""

    rtt_s: float
    bits_per_s: float = inf  # each way
    draft_s: float = 0.015  # a token of the device
    pass_s: float = 0.025  # of the cloud, and token_s for each token that it is fed
    token_s: float = 0.002
    up_bytes: float = 92.0  # of a proposal without its tokens
    proposed_bytes: float = 2.0  # of a proposed token, with its distribution where one is sent
    down_bytes: float = 92.0  # of a verdict on one token, and ID_BYTES for each that it has more
    open_s: float = 0.0  # from the question to the first pass at the cloud, beside half a round trip

    def costs(self, pacing: Pacing) -> RoundCosts:
        """What the device chooses lengths by."""
        frames_s = 8 * (self.up_bytes + self.down_bytes) / self.bits_per_s
        alone_s = self.pass_s + self.token_s
        return RoundCosts(
            fixed_s=self.rtt_s + frames_s + self.pass_s + self.token_s,
            token_s=self.draft_s + self.token_s + 8 * self.proposed_bytes / self.bits_per_s,
            alone_s=alone_s if pacing == "cloud_goes_on" else alone_s + self.rtt_s + frames_s,
            draft_s=self.draft_s if pacing == "pipelined" else nan,
            pass_s=alone_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One answer."""

    committed_s: tuple[float, ...]  # when the device knows each token, since the question
    num_passes: int  # of the cloud
    num_proposed: int  # tokens that were sent
    num_accepted: int  # tokens of the answer that the cloud took from a proposal
    up_bytes: float
    down_bytes: float
    lengths: tuple[tuple[float, int], ...] = ()  # when a proposal was begun, and its length

    @property
    def num_tokens(self) -> int:
        """Of the answer."""
        return len(self.committed_s)

    @property
    def first_s(self) -> float:
        """Until the first token."""
        return self.committed_s[0]

    @property
    def token_s(self) -> float:
        """Seconds per token after those that came first; nan if they came at once."""
        return pace_s([self.committed_s])

    @property
    def passes_per_token(self) -> float:
        """Of the cloud."""
        return ratio(self.num_passes, self.num_tokens)


def pace_s(answers: Sequence[Sequence[float]]) -> float:
    """Seconds per token of answers, each of which tells when its tokens came. The first frame's are where time begins.

    nan if all came with the first.
    """
    later = [(times_s, sum(at_s > times_s[0] for at_s in times_s)) for times_s in answers if times_s]
    return ratio(sum(times_s[-1] - times_s[0] for times_s, num in later if num), sum(num for _, num in later))
