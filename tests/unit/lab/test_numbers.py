"""Averages of nothing, and values as JSON can hold them."""

from __future__ import annotations

import json
from math import inf, isnan, nan

from tandem.topology import Party
from tandem_lab.numbers import from_plain, mean, median_of, percentile, ratio, to_plain


def test_nothing_has_no_average() -> None:
    assert all(isnan(value) for value in (mean([]), median_of([]), percentile([], 0.95), ratio(1, 0)))


def test_averages() -> None:
    values = [3.0, 1.0, 2.0, 10.0]
    assert (mean(values), median_of(values), percentile(values, 0.75), ratio(1, 4)) == (4.0, 2.5, 3.0, 0.25)


def test_json_holds_what_is_plain() -> None:
    value = {Party.DEVICE: [nan, inf, 0.123456789], "name": (Party.CLOUD, None, True)}
    plain = {"device": [None, None, 0.1235], "name": ["cloud", None, True]}
    assert to_plain(value, digits=4) == plain
    assert json.loads(json.dumps(to_plain(value, digits=4), allow_nan=False)) == plain
    assert to_plain(0.123456789) == 0.123456789


def test_null_is_nan_again() -> None:
    found = from_plain({"a": {"b": None}, "c": 2.0})
    assert isnan(found["a"]["b"])
    assert found["c"] == 2.0
