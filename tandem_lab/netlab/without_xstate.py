"""Runs a command, such as a User-Mode-Linux kernel, that cannot read or set a processor's extended registers.

    python without_xstate.py COMMAND...

User-Mode-Linux 6.1 sets the registers of its processes with PTRACE_SETREGSET from a buffer that is too small for those
of Intel's AMX, which Linux refuses, so that its first process dies. Where the call fails from the start, the kernel
uses PTRACE_SETFPREGS instead, which has no more than SSE's: `VARIABLE` keeps the C library of its processes to these.
Imports nothing of Tandem.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

VARIABLE = (
    "GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX,-AVX2,-AVX512F,-AVX512VL,-AVX512BW,-XSAVE,-XSAVEC,-ERMS,"
    "-AVX_Fast_Unaligned_Load"
)
"""For the kernel's command line: what it does not know is its first process's environment."""
_PTRACE, _GETREGSET, _SETREGSET = 101, 0x4204, 0x4205  # of x86-64
_NUMBER_AT, _REQUEST_AT = 0, 16  # in a seccomp_data
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000 | errno.EIO
_FILTER = (  # code, instructions to skip if equal, if not, value
    (_LOAD, 0, 0, _NUMBER_AT),
    (_JUMP_IF_EQUAL, 0, 4, _PTRACE),
    (_LOAD, 0, 0, _REQUEST_AT),
    (_JUMP_IF_EQUAL, 1, 0, _GETREGSET),
    (_JUMP_IF_EQUAL, 0, 1, _SETREGSET),
    (_RETURN, 0, 0, _FAIL),
    (_RETURN, 0, 0, _ALLOW),
)
_SET_NO_NEW_PRIVILEGES, _SET_SECCOMP, _MODE_FILTER = 38, 22, 2


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def forbid_register_sets() -> None:
    """From now on, for this process and those that it starts. Raises OSError."""
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in _FILTER))
    program = _Program(len(_FILTER), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((_SET_NO_NEW_PRIVILEGES, 1, 0), (_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program))):
        if libc.prctl(*arguments, 0, 0):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    forbid_register_sets()
    os.execv(sys.argv[1], sys.argv[1:])
