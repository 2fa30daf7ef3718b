"""Codecs by name, those of one's own, the state that a codec keeps for each prefix, and payloads of a token."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tandem.aggregation.distributions import Distribution
from tandem.codecs import CodecSession, CodecStates, TopP, codec_of
from tandem.codecs.votes import log_probabilities, read_named_token, read_token, write_token
from tandem.config.extensions import CodecConfig
from tandem.errors import ConfigError, ProtocolError
from tandem.messages import Logprobs
from tandem.plugins.papers.codecs import TopK
from tandem.protocol.log import Prefix
from tandem_lab.simulation import world
from tandem_lab.simulation.link import Link
from tandem_lab.simulation.recoded import simulate_codec
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


NUM_TOKENS = 1 << 17
tokens = st.integers(0, NUM_TOKENS - 1)
logprobs = st.floats(max_value=0.0, allow_nan=False)


def known_of(logprob: float, *top: tuple[int, float]) -> Logprobs:
    ids, logprobs = zip(*top, strict=True) if top else ((), ())
    return Logprobs(logprob=logprob, top_ids=ids, top_logprobs=logprobs)


named = st.lists(st.tuples(tokens, logprobs), max_size=20).flatmap(
    lambda top: st.builds(lambda own: known_of(own, *top), logprobs)
)


@given(tokens, named)
def test_what_is_written_comes_back(token: int, known: Logprobs) -> None:
    assert read_named_token(write_token(token), NUM_TOKENS) == (token, None)
    assert read_named_token(write_token(token, known), NUM_TOKENS) == (token, known)
    assert read_token(write_token(token, known), NUM_TOKENS) == token


def test_sizes_are_pinned() -> None:
    assert [len(write_token(token)) for token in (127, 128, NUM_TOKENS - 1)] == [1, 2, 3]
    tag = 1
    known = known_of(-0.5, (1, -0.5), (300, -2.0))
    assert len(write_token(300, known)) == 2 + tag + 8 + 1 + (1 + 2) + 1 + 2 * 8
    assert len(write_token(300, known_of(-0.5))) == 2 + tag + 8 + 1 + 1


@settings(deadline=None, derandomize=True)
@given(tokens, named, st.data())
def test_other_bytes_are_refused_or_read(token: int, known: Logprobs, data: st.DataObject) -> None:
    payload = write_token(token, known)
    for length in range(len(write_token(token)) + 1, len(payload)):
        with pytest.raises(ProtocolError):
            read_named_token(payload[:length], NUM_TOKENS)
    with pytest.raises(ProtocolError):
        read_named_token(payload + b"\0", NUM_TOKENS)
    with contextlib.suppress(ProtocolError):
        read_named_token(data.draw(st.binary(max_size=60)), NUM_TOKENS)


@pytest.mark.parametrize("index", [8, NUM_TOKENS])
def test_a_token_that_the_vocabulary_lacks_is_refused(index: int) -> None:
    for payload in (write_token(index), write_token(1, known_of(-math.log(2), (index, -1.0)))):
        with pytest.raises(ProtocolError, match="below 8"):
            read_named_token(payload, 8)


# ---- log probabilities of a token and of its alternatives: all of them, in order, of sum 1 -------------------

TARGET = Distribution(np.array([2, 5, 7, 9]), np.array([0.25, 0.5, 0.25, 0.0]))


def test_excluded_tokens_are_no_alternatives() -> None:
    assert len(log_probabilities(TARGET, 5, 20).top_ids) == 3
    assert log_probabilities(TARGET, 5, 0).top_ids == ()


def test_the_rest_is_spread_over_the_other_tokens() -> None:
    target = Distribution(np.array([1]), np.array([0.4]), rest=0.6, vocab_size=5)
    named = log_probabilities(target, 3, 5)
    assert named.logprob == pytest.approx(math.log(0.15))
    assert named.top_ids == (1, 0, 2, 3, 4)
    assert math.fsum(map(math.exp, named.top_logprobs)) == pytest.approx(1.0, abs=1e-12)


CODEC = Threshold(world.VOCAB)
BAD_LINK = Link(delay_s=0.1, jitter_s=0.1, drop=0.05)
SEEDS = range(12)


def agrees(seed: int, placement: str) -> bool:
    """Whether speculation over a bad link gives the tokens of the synchronous run."""
    wanted = simulate_codec(CODEC, seed, Link(), max_window=1, placement="device").tokens
    found = simulate_codec(CODEC, seed, BAD_LINK, max_window=16, placement=placement).tokens
    return found == wanted


@pytest.mark.parametrize("placement", ["device", "cloud", "mirror"])
def test_speculation_gives_the_tokens_of_the_synchronous_run(placement: str) -> None:
    assert all(agrees(seed, placement) for seed in SEEDS)


def test_a_codec_that_does_not_roll_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant goes on from whatever was encoded last, rejected drafts included."""

    def last(self: CodecStates, lineage: Sequence[bytes]) -> CodecSession:
        before: CodecSession = vars(self).get("last", CODEC.open())
        return before

    def encode(self: CodecStates, dense: object, lineage: Sequence[bytes]) -> bytes:
        payload, after = last(self, lineage).encode(dense)  # type: ignore[arg-type]
        vars(self)["last"] = after
        return payload

    monkeypatch.setattr(CodecStates, "encode", encode)
    assert not all(agrees(seed, "mirror") for seed in SEEDS)
