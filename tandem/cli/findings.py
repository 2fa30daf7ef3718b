"""The result of one check of `tandem doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What was looked at and found."""

    name: str
    status: Literal[
        "ok", "weak", "missing"
    ]  # missing: Tandem cannot run; weak: slow, or not for every purpose
    found: str
    remedy: str = ""  # empty where all is well


def ok(name: str, found: str) -> Check:
    """All is well."""
    return Check(name=name, status="ok", found=found)


def weak(name: str, found: str, remedy: str) -> Check:
    """Tandem runs, with a drawback."""
    return Check(name=name, status="weak", found=found, remedy=remedy)


def missing(name: str, found: str, remedy: str) -> Check:
    """Tandem cannot run."""
    return Check(name=name, status="missing", found=found, remedy=remedy)
