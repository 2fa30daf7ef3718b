"""A command that cannot read or set extended registers, and everything else that it may do."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tandem_lab.netlab import without_xstate
from tandem_lab.netlab.router import has_amx

CODE = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
for request in (0x4204, 0x4205, 16):
    ctypes.set_errno(0)
    result = libc.ptrace(request, 0, 0, 0)
    print(result, errno.errorcode.get(ctypes.get_errno()))
"""
"""Asks for register sets of a process that is not traced, and last to attach to none: ESRCH where it is allowed."""


def errors(*prefix: str) -> list[str]:
    command = [*prefix, sys.executable, "-I", "-c", CODE]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")[:3]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the filter knows calls of x86-64")
def test_only_calls_for_register_sets_fail() -> None:
    assert errors() == ["-1 ESRCH"] * 3
    wrapped = errors(sys.executable, "-I", str(without_xstate.__file__))
    assert wrapped == ["-1 EIO", "-1 EIO", "-1 ESRCH"]


@pytest.mark.parametrize(
    ("flags", "expected"), [("fpu sse avx512f amx_tile amx_int8", True), ("fpu sse avx512f", False)]
)
def test_processors_are_told_apart_by_their_flags(tmp_path: Path, flags: str, expected: bool) -> None:
    (tmp_path / "cpuinfo").write_text(f"model name\t: amx_tile\nflags\t\t: {flags}\nbugs\t\t:\n", "utf-8")
    assert has_amx(tmp_path / "cpuinfo") is expected
