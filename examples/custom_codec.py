r"""A codec of your own: the k most probable tokens, each with a probability in 8 bits.

Run it:   python examples/custom_codec.py
Use it:   cd examples; tandem ask "When was the lighthouse on Vey built?" \
              --set codec.name=custom_codec:TopK8 --set "codec.parameters={k = 8}"
"""

from dataclasses import dataclass

import numpy as np

from tandem.aggregation.distributions import Distribution
from tandem.aggregation.rules import draft_rule
from tandem.codecs import StatelessCodec
from tandem.codecs.base import MAX_VOCAB
from tandem.errors import ProtocolError
from tandem.topology import Party


# --8<-- [start:codec]
@dataclass(frozen=True)
class TopK8(StatelessCodec):
    """The k most probable tokens. Bytes: k ids of 32 bits, ascending, then k weights of 8 bits, each 1 to 255."""

    k: int = 16

    @property
    def max_bytes(self) -> int:
        """Size of the largest payload."""
        return 5 * self.k

    def encode(self, dense: np.ndarray) -> bytes:
        """Bytes of probabilities [vocab]; they need not sum to 1."""
        ids = np.sort(np.argsort(-dense, kind="stable")[: self.k])
        weights = np.maximum(1, np.rint(255 * dense[ids] / dense.max()))
        return b"".join((ids.astype("<u4").tobytes(), weights.astype("u1").tobytes()))

    def decode(self, payload: bytes, vocab_size: int = MAX_VOCAB) -> Distribution:
        """The distribution that *both* parties use, the drafter too; ProtocolError if the bytes are malformed."""
        if len(payload) > self.max_bytes:
            raise ProtocolError(f"A distribution has at most {self.max_bytes} bytes, got {len(payload)}.")
        k = len(payload) // 5
        weights = np.frombuffer(payload, "u1", offset=4 * k).astype(np.int64)
        try:
            return Distribution(
                np.frombuffer(payload, "<u4", k), weights / weights.sum(), vocab_size=vocab_size
            )
        except ValueError as error:
            raise ProtocolError(f"The encoded distribution is malformed ({error}).") from error

    def fingerprint(self) -> str:
        """What must agree on both parties: the layout and every parameter."""
        return f"top_k_8/1(k={self.k})"


# --8<-- [end:codec]


def main() -> None:
    """One step of an answer: both parties compress, draft and send; whoever decides reads the same bytes."""
    codec, rule = TopK8(k=8), draft_rule("coupled", temperature=1.0)
    rng = np.random.default_rng(7)
    common, *own = rng.dirichlet(np.full(1000, 0.01), size=3)
    sent = {party: codec.encode(common + p) for party, p in zip(Party, own, strict=True)}
    for party, payload in sent.items():
        draft = rule.draft(codec.decode(payload), seed=7, step=0, party=party)
        print(f"{party} drafts token {draft} and sends {len(payload)} bytes")
    device, cloud = codec.decode(sent[Party.DEVICE]), codec.decode(sent[Party.CLOUD])
    result = rule.verify(device, cloud, eta_device=0.5, seed=7, step=0)
    accepted = f"device accepted {result.device_accepted}, cloud accepted {result.cloud_accepted}"
    print(f"target {result.target}: {accepted}")


if __name__ == "__main__":
    main()
