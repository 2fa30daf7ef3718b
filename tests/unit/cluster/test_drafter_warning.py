"""A cloud that runs another model than the device's drafter was made for is pointed out, and nothing is refused."""

from __future__ import annotations

from typing import Any

from tandem.sites.startup import warn_of_drafter
from tandem.topology import Party

DRAFTER = {
    "model": "d",
    "drafter_for": {"target": "big", "fingerprints": {"float32": "aa", "bfloat16": "bb"}},
}


def lines(device: dict[str, Any], cloud: dict[str, Any]) -> list[str]:
    said: list[str] = []
    warn_of_drafter({Party.DEVICE: device, Party.CLOUD: cloud}, said.append)
    return said


def test_another_target_is_pointed_out() -> None:
    (line,) = lines(DRAFTER, {"model": "bigger", "weights_fingerprint": "cc"})
    assert line == (
        "drafter: The drafter 'd' was made for 'big', whose weights differ from those of the cloud's 'bigger'; "
        "answers are exact, but fewer drafts stand. Train one for it with `tandem draft train`."
    )


def test_its_own_target_in_any_precision_is_not() -> None:
    for fingerprint in ("aa", "bb"):
        assert lines(DRAFTER, {"model": "big", "weights_fingerprint": fingerprint}) == []


def test_what_is_unknown_is_not() -> None:
    assert lines({"model": "d"}, {"model": "big", "weights_fingerprint": "cc"}) == []
    assert lines({"model": "d", "drafter_for": {}}, {"model": "big", "weights_fingerprint": "cc"}) == []
    assert lines(DRAFTER, {"model": "big"}) == []
