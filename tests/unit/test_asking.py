"""How long an answer may be: counted at home, by the shortest context."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tandem.client.ask import Asker
from tandem.modes.spec import SessionSpec
from tandem.sites.port import SitePort
from tandem_lab.simulation.specs import make_spec


class Site(SitePort):
    """Notes what its decoder is asked."""

    def __init__(self, room: int) -> None:
        self.asked: list[tuple[SessionSpec, int]] = []
        self._room = room

    async def call(self, role: str, method: str, *arguments: Any) -> Any:
        assert (role, method) == ("decoder", "answer_room")
        spec, context = arguments
        self.asked.append((SessionSpec.from_json(spec), context))
        return self._room


@pytest.mark.parametrize(
    ("contexts", "room", "longest", "asked"),
    [
        ({"device": 8192, "cloud": 700}, 90, 90, [700]),
        ({"device": 700, "cloud": None}, 900, 512, [700]),
        ({"device": 8192, "cloud": 8192}, 1, 512, []),
        ({"device": None, "cloud": None}, 1, 512, []),
    ],
)
def test_the_home_counts_by_the_shortest_context_and_nobody_else_is_asked(
    contexts: dict[str, int | None], room: int, longest: int, asked: list[int]
) -> None:
    """The device's filter is part of the spec, and must not reach the cloud."""
    sites = {"device": Site(room), "cloud": Site(1)}
    described = {party: {"context_length": length} for party, length in contexts.items()}
    asker = Asker(sites, str, lambda: described)
    spec = make_spec(max_new_tokens=512, device_filter='{"source": "private.md"}')
    fitted = asyncio.run(asker.fit(spec))
    assert fitted.sampling.max_new_tokens == longest
    assert [context for _, context in sites["device"].asked] == asked
    assert sites["cloud"].asked == []


def test_texts_are_counted_while_the_loop_serves_others(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = threading.Event()

    class Slow:
        def encode_batch_fast(self, texts: list[str], **_: object) -> list[str]:
            return texts if goes_on.wait(5) else []

    async def count() -> int:
        async def tokenizer_json() -> str:
            return ""

        sites: Any = {"device": SimpleNamespace(tokenizer_json=tokenizer_json)}
        counting = asyncio.create_task(Asker(sites, str).count_tokens(["abc", "", "de"]))
        await asyncio.sleep(0.01)
        goes_on.set()
        return await counting

    monkeypatch.setattr("tandem.client.ask.Tokenizer", SimpleNamespace(from_str=lambda _: Slow()))
    assert asyncio.run(count()) == 5
