"""Notes: written in one step, read by anybody, gone without a trace."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tandem_lab.errors import NetLabError
from tandem_lab.netlab.shape import Shape
from tandem_lab.netlab.state import State, Store


def state() -> State:
    shape = Shape(rtt_s=0.1, rate_bits_per_s=5e7)
    return State(
        name="lab", subnet="10.99.0.0/24", kind="router", router_pid=7, shape=shape, is_complete=True
    )


def test_what_is_noted_is_read_back(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.read("lab") is None
    store.write(state())
    assert Store(tmp_path).read("lab") == state()
    assert store.names() == ["lab"]
    assert str(state().layout.address("cloud")) == "10.99.0.130"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 0}', '{"version": 1, "name": "lab"}'])
def test_a_damaged_note_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "lab.json").write_text(text, "utf-8")
    with pytest.raises(NetLabError, match="must hold what Tandem wrote there"):
        Store(tmp_path).read("lab")


def test_forgetting_leaves_nothing_of_this_network(tmp_path: Path) -> None:
    folder = tmp_path / "tandem" / "netlab"
    store = Store(folder)
    with store.locked():
        store.write(state())
        store.workplace("lab").mkdir()
        (store.workplace("lab") / "log").write_text("x", "utf-8")
    assert store.names() == ["lab"]
    with store.locked():
        store.forget("lab")
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_folders_place_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "netlab").touch()
    with pytest.raises(NetLabError, match="must be a folder"), Store(tmp_path / "netlab").locked():
        pass


def test_a_folder_with_another_network_stays(tmp_path: Path) -> None:
    store = Store(tmp_path / "netlab")
    with store.locked():
        store.write(state())
        store.forget("other")
    assert store.names() == ["lab"]


def test_one_at_a_time_even_when_the_folder_goes_meanwhile(tmp_path: Path) -> None:
    inside, most = [0], [0]

    def work() -> None:
        for _ in range(30):
            with Store(tmp_path / "t" / "netlab").locked():
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(timeout=60)
    assert most == [1]
    assert list(tmp_path.iterdir()) == []
