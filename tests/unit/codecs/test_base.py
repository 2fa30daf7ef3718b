"""Codecs by name, those of one's own, and the state that a codec keeps for each prefix."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from tandem.codecs import CodecStates, TopP, codec_of
from tandem.config.extensions import CodecConfig
from tandem.errors import ConfigError
from tandem.plugins.papers.codecs import TopK
from tandem.protocol.log import Prefix
from tests.unit.codecs.stateful import Threshold

VOCAB = 8
MODULE = """
from tandem.codecs import TopP


def nucleus(share, max_tokens=4):
    return TopP(share, max_tokens)


def number(k=1):
    return k


def broken():
    raise RuntimeError("no luck\\nat all")
"""


@pytest.mark.parametrize("name", ["auto", "top_p"])
def test_the_codec_of_the_settings(name: Literal["auto", "top_p"]) -> None:
    assert codec_of(CodecConfig(name=name, parameters={"p": 0.9})) == TopP(0.9)
    assert codec_of(CodecConfig(name=name)).fingerprint() == "top_p/2(p=0.8, max_tokens=4096)"
    assert codec_of(CodecConfig(name="top_k", parameters={"k": 8, "rest": "residual"})) == TopK(8, "residual")


# ---- codecs of one's own -------------------------------------------------------------------------------------


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_codecs.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("own_module")
def test_a_codec_of_ones_own_by_its_address() -> None:
    codec = codec_of(CodecConfig(name="own_codecs:nucleus", parameters={"share": 0.5}))
    assert codec.fingerprint() == TopP(0.5, 4).fingerprint()


REFUSED = [
    (
        "top_k",
        {"p": 0.9},
        "tandem.plugins.papers.codecs:TopK has no parameter 'p' ([codec.parameters]); choose one of k, rest.",
    ),
    (
        "own_codecs:nucelus",
        {},
        "own_codecs has no function 'nucelus' (codec.name = 'own_codecs:nucelus'); did you mean nucleus?",
    ),
    (
        "own_codecs:nucleus",
        {"shard": 0.5},
        "own_codecs:nucleus has no parameter 'shard' ([codec.parameters]); did you mean share?",
    ),
    (
        "own_codecs:nucleus",
        {},
        "own_codecs:nucleus needs the parameter 'share'; add it to [codec.parameters].",
    ),
    (
        "own_codecs:nucleus",
        {"share": 2},
        "The mass p of codec top_p must lie in (0, 1], got 2; the default is 0.8.",
    ),
    (
        "own_codecs:broken",
        {},
        "own_codecs:broken (codec.name) failed with RuntimeError: no luck; correct it or [codec.parameters].",
    ),
    (
        "own_codecs:number",
        {},
        "own_codecs:number (codec.name) must return a codec, but its int has no max_bytes, open, decode, fingerprint.",
    ),
]


@pytest.mark.usefixtures("own_module")
@pytest.mark.parametrize(("name", "parameters", "sentence"), REFUSED, ids=[case[2][:60] for case in REFUSED])
def test_what_is_no_codec_is_one_sentence(
    name: str, parameters: dict[str, bool | int | float | str], sentence: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        codec_of(CodecConfig(name=name, parameters=parameters), "The device's decoder")
    assert str(caught.value) == sentence


# ---- the state of a codec ------------------------------------------------------------------------------------


def dense_after(tokens: tuple[int, ...]) -> NDArray[np.float64]:
    """What a model would compute after a prefix."""
    return np.random.default_rng([*tokens, 99]).dirichlet(np.full(VOCAB, 0.4))


def feed(states: CodecStates, prefix: Prefix) -> bytes:
    """Encode the distribution that follows a prefix."""
    return states.encode(dense_after(tuple(prefix.tokens)), prefix.digests)


def fresh(tokens: list[int]) -> CodecStates:
    """The states of a session that never rolled back: fed every beginning of `tokens`, itself left out."""
    states, prefix = CodecStates(Threshold(VOCAB)), Prefix(1)
    for token in tokens:
        feed(states, prefix)
        prefix.append(token)
    return states


def test_a_state_after_a_rollback_is_that_of_a_fresh_session() -> None:
    """Whatever was drafted, rejected, taken up again: the state is a function of the prefix alone."""
    rng = np.random.default_rng(3)
    states, prefix = CodecStates(Threshold(VOCAB)), Prefix(1)
    seen: dict[tuple[int, ...], bytes] = {}
    num_rollbacks = num_returns = 0
    for _ in range(400):
        tokens = tuple(prefix.tokens)
        expected = fresh(list(tokens)).before(prefix.digests)
        assert states.before(prefix.digests) == expected
        if tokens in seen:  # what was proposed once is taken from the store: nothing is encoded again
            num_returns += 1
        else:
            seen[tokens] = feed(states, prefix)
            assert seen[tokens] == expected.encode(dense_after(tokens))[0]
        prefix.append(int(rng.integers(2)))
        if rng.random() < 0.3:
            prefix.truncate(int(rng.integers(max(0, len(prefix) - 6), len(prefix))))
            num_rollbacks += 1
    assert num_rollbacks > 50
    assert num_returns > 50
    assert len({state.beta for state in (states.before(Prefix(1, tokens).digests) for tokens in seen)}) > 50  # type: ignore[attr-defined]
