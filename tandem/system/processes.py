"""Processes for what this one must not be held up, filled or ended by; and quiet loading.

They import this module, so it imports nothing heavy.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Any


class NotStartedError(Exception):
    """A process cannot be started; the text says which and why, to follow "but "."""


def environment(**variables: str) -> dict[str, str]:
    """The environment of a process that finds Tandem where this one does. variables: beside those of this process."""
    folders = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
    return {**os.environ, "PYTHONPATH": folders, **variables}


def count_cores() -> int:
    """The cores that this process may use; where the system does not say which, all of them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Companion:
    """A process that answers one request after the other, and ends with the one that asks.

    A request is a JSON line on a socket, which may carry open files; the answer is JSON lines on a pipe, of which the
    last has "end". It is started for the first request, and again after it has ended. Safe for threads, which wait for
    each other.
    """

    def __init__(self, main: str, *arguments: str, **variables: str) -> None:
        """main: "module:function", called in the process, says a line when it is ready. variables: of its environment,
        beside those of this process."""
        module, _, function = main.partition(":")
        self._arguments = ["-P", "-c", f"from {module} import {function}; {function}()", *arguments]
        self._variables = variables
        self._process: tuple[subprocess.Popen[bytes], socket.socket] | None = None  # and where requests go
        self._lock = threading.Lock()

    def ask(self, request: Mapping[str, Any], *files: int) -> Iterator[dict[str, Any]]:
        """The lines of the answer; {"exit": code} is the last one if the process ended within.

        Who stops before the last one ends the process. Raises NotStartedError.
        """
        with self._lock:
            is_whole = False
            try:
                process, requests = self._running()
                data = json.dumps(request).encode() + b"\n"
                with suppress(BrokenPipeError, ConnectionResetError):  # it has ended, which shows below
                    num_sent = socket.send_fds(requests, [data], files)
                    requests.sendall(data[num_sent:])
                assert process.stdout is not None
                for line in process.stdout:
                    if not line.endswith(b"\n"):  # it ended within
                        break
                    answer = json.loads(line)
                    is_whole = "end" in answer
                    yield answer
                    if is_whole:
                        return
                is_whole = True
                yield {"exit": process.wait()}
            finally:
                if not is_whole:  # the rest must not be taken for the next answer
                    self._end()

    @property
    def pid(self) -> int | None:
        """The number of the process; None while none runs."""
        running = self._process
        return running[0].pid if running is not None and running[0].poll() is None else None

    def close(self) -> None:
        """Ends the process, once it has answered; the next request starts another one."""
        with self._lock:
            self._end()

    def _running(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        if self._process is None or self._process[0].poll() is not None:
            self._end()
            self._process = self._start()
        return self._process

    def _start(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        """Starts a process. Raises NotStartedError."""
        requests, theirs = socket.socketpair()
        try:
            with theirs:
                process = subprocess.Popen(
                    [sys.executable, *self._arguments],
                    stdin=theirs.fileno(),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,  # a traceback quotes, and is of no use next to a sentence
                    env=environment(**self._variables),
                    start_new_session=True,  # Ctrl-C is for the process that reads the answers
                )
            assert process.stdout is not None
            if process.stdout.readline():
                return process, requests
            why = f"exit code {process.wait()}"
        except OSError as error:
            why = error.strerror or str(error)
        requests.close()
        raise NotStartedError(
            f"{sys.executable} cannot be started for it ({why}); free memory and processes, or repair the installation"
        )

    def _end(self) -> None:
        if self._process is not None:
            process, requests = self._process
            self._process = None
            process.kill()
            process.communicate()
            requests.close()


def limit_time(limit_s: float, wait_factor: float = 1.0) -> None:
    """Have the kernel end this process after so much processor time, or `wait_factor` times as much by the clock.

    limit_s: 0 takes the limit away.
    """
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    signal.setitimer(signal.ITIMER_REAL, wait_factor * limit_s)


def describe_exit(code: int) -> str:
    """How a process ended, in words."""
    with suppress(ValueError):
        if code < 0:
            return f"signal {-code} ({signal.Signals(-code).name})"
    return f"exit code {code}"


class Answers:
    """What a companion says."""

    def __init__(self) -> None:
        """Takes its standard output; what others print from here on is no answer."""
        self._file = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)

    def put(self, **fields: Any) -> None:
        """A line of the answer, which may wait for others; the last one has "end"."""
        self._file.write(json.dumps(fields).encode() + b"\n")

    def send(self, **fields: Any) -> None:
        """A line of the answer, at once, with those that waited."""
        self.put(**fields)
        self._file.flush()


def serve(handle: Callable[[dict[str, Any], list[int], Answers], None]) -> None:
    """The main function of a companion. handle(request, files, answers): answers one request."""
    received: SimpleQueue[tuple[bytes, list[int]]] = SimpleQueue()
    threading.Thread(target=_receive, args=(received,), daemon=True).start()
    answers = Answers()
    answers.send(ready=True)
    while True:
        line, files = received.get()
        handle(json.loads(line), files, answers)


def _receive(received: SimpleQueue[tuple[bytes, list[int]]]) -> None:
    """Ends the process at once when the one that asks is gone, whatever it is at."""
    line, files = b"", list[int]()
    with socket.socket(fileno=0) as source:
        while True:
            data, more, _, _ = socket.recv_fds(source, 1 << 16, 1)
            if not data:
                os._exit(0)
            line, files = line + data, files + more
            if line.endswith(b"\n"):
                received.put((line, files))
                line, files = b"", []


@contextmanager
def hide_progress_bars() -> Iterator[None]:
    """Keep transformers from drawing progress bars, and leave its setting as it was."""
    from transformers.utils import logging as transformers_logging

    logging: Any = transformers_logging
    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()
