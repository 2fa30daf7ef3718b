"""A cloud that runs another model than the device's drafter was made for is pointed out, and nothing is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tandem.config.schema import Config
from tandem.sites.startup import note_pairing
from tandem.topology import Party

CARD = {"drafter_for": {"target": "big", "fingerprints": {"float32": "aa", "bfloat16": "bb"}}}


@pytest.mark.parametrize(
    ("card", "cloud", "is_noted"),
    [
        (CARD, {"weights_fingerprint": "cc"}, True),
        (CARD, {"weights_fingerprint": "aa"}, False),  # its own target, in any precision
        (CARD, {"weights_fingerprint": "bb"}, False),
        (CARD, {}, False),  # what is unknown is not
        ({}, {"weights_fingerprint": "cc"}, False),
        ({"drafter_for": {}}, {"weights_fingerprint": "cc"}, False),
    ],
)
def test_another_target_is_pointed_out(card: dict[str, Any], cloud: dict[str, Any], is_noted: bool) -> None:
    said: list[str] = []
    described = {Party.DEVICE: {"model": "d"} | card, Party.CLOUD: {"model": "bigger"} | cloud}
    note_pairing(Config(), described, said.append)
    line = (
        "drafter: The drafter 'd' was made for 'big', whose weights differ from those of the cloud's 'bigger'; "
        "answers are exact, but fewer drafts stand. Train one for it with `tandem draft train`."
    )
    assert said == ([line] if is_noted else [])
