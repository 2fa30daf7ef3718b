"""The registry of codecs, and the example of a codec of one's own."""

from __future__ import annotations

import numpy as np
import pytest

from tandem.aggregation.distributions import Distribution
from tandem.codecs import base, codec_of
from tandem.codecs.base import make_codec, register
from tandem.config import CodecConfig
from tandem.errors import ConfigError


class OnlyTheArgmax:
    """A codec of one token."""

    name = "argmax"

    def __init__(self, num_bytes: int = 4) -> None:
        self.num_bytes = num_bytes

    def encode(self, dense: np.ndarray) -> bytes:
        return int(np.argmax(dense)).to_bytes(self.num_bytes, "little")

    def decode(self, payload: bytes) -> Distribution:
        return Distribution(np.array([int.from_bytes(payload, "little")]), np.ones(1))

    def fingerprint(self) -> str:
        return f"argmax(num_bytes={self.num_bytes})"


@pytest.fixture(autouse=True)
def _registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "CODECS", dict(base.CODECS))


def test_a_registered_codec_is_made_by_its_name() -> None:
    assert register(OnlyTheArgmax) is OnlyTheArgmax
    codec = make_codec("argmax", num_bytes=3)
    payload = codec.encode(np.array([0.1, 0.7, 0.2]))
    assert payload == b"\x01\x00\x00"
    assert codec.decode(payload).argmax() == 1


def test_its_parameters_are_those_of_its_constructor() -> None:
    register(OnlyTheArgmax)
    with pytest.raises(
        ConfigError, match=r"^The codec argmax has no parameter 'p'; did you mean 'num_bytes'\?$"
    ):
        make_codec("argmax", p=0.8)
    with pytest.raises(ConfigError, match=r"^The codec 'argmin' is unknown; did you mean argmax\?$"):
        make_codec("argmin")


def test_the_codec_of_the_settings() -> None:
    assert codec_of(CodecConfig(p=0.9)).fingerprint() == make_codec("top_p", p=0.9).fingerprint()


def test_a_codec_gets_the_settings_that_it_knows() -> None:
    register(OnlyTheArgmax)
    config = CodecConfig(p=0.9)
    object.__setattr__(config, "name", "argmax")
    assert codec_of(config).fingerprint() == make_codec("argmax").fingerprint()
