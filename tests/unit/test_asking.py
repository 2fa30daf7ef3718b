"""What is settled at home before a query is opened: how long an answer may be, and whether a filter can be kept to."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tandem.client.ask import Asker
from tandem.errors import Code, QueryError
from tandem.sites.port import SitePort
from tandem_lab.simulation.specs import make_spec


class Site(SitePort):
    """Answers by the name of the method, otherwise with an empty list, and notes what it was asked."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[tuple[str, str, tuple[Any, ...]]] = []

    async def call(self, role: str, method: str, *arguments: Any) -> Any:
        self.asked.append((role, method, arguments))
        return self.answers.get(method, [])


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
    sites = {"device": Site(answer_room=room), "cloud": Site(answer_room=1)}
    described = {party: {"context_length": length} for party, length in contexts.items()}
    asker = Asker(sites, str, lambda: described)
    spec = make_spec(max_new_tokens=512, device_filter='{"source": "private.md"}')
    fitted = asyncio.run(asker.fit(spec))
    assert fitted.sampling.max_new_tokens == longest
    calls = [(role, method, context) for role, method, (_, context) in sites["device"].asked]
    assert calls == [("decoder", "answer_room", context) for context in asked]
    assert sites["cloud"].asked == []


@pytest.mark.parametrize(
    ("changes", "is_refused"),
    [
        ({}, True),
        ({"device_filter": ""}, False),
        ({"device_documents": 0}, False),  # nothing is searched
    ],
)
def test_a_filter_is_tried_at_home_before_the_query_is_opened(
    changes: dict[str, Any], is_refused: bool
) -> None:
    """There is no document with the metadata of any filter."""
    site = Site(find_refusal=["no such key", "invalid", "device_filter"])
    spec = make_spec(**{"device_filter": '{"colour": "red"}', "device_documents": 2, **changes})

    async def ask() -> None:
        async for _ in Asker({"device": site}, str).ask(spec, 0.01, at_once=True):
            pass

    with pytest.raises(QueryError) as raised:
        asyncio.run(ask())
    assert ("open" not in {method for _, method, _ in site.asked}) == is_refused
    fault = (Code.INVALID, "device_filter") if is_refused else (Code.TIMEOUT, None)
    assert (raised.value.code, raised.value.option) == fault
