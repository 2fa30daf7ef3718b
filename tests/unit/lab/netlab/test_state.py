"""Notes: written in one step, read by anybody, gone without a trace."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tandem_lab.errors import NetLabError
from tandem_lab.netlab.state import Store


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 0}', '{"version": 1, "name": "lab"}'])
def test_a_damaged_note_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "lab.json").write_text(text, "utf-8")
    with pytest.raises(NetLabError, match="must hold what Tandem wrote there"):
        Store(tmp_path).read("lab")


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
