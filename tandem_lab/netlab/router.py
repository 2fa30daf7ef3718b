"""The link where this machine's kernel lacks netem: a small Linux of its own between the hosts, which has it.

A User-Mode-Linux kernel is an ordinary process. It reads this machine's files, read-only, and sees two network
interfaces, which are taps in the namespace `router`; it forwards between them and runs `tc` on each. Its console is
a pipe: each line written there is a command to `tc`, which is how the shape changes at once and from any process.
Knows nothing of what the hosts send.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

from tandem_lab.errors import NetLabError
from tandem_lab.netlab import namespaces, tools, without_xstate
from tandem_lab.netlab.direct import add_neighbour
from tandem_lab.netlab.layout import HOSTS, INTERFACE, Layout, other
from tandem_lab.netlab.shape import Shape
from tandem_lab.netlab.tools import Runner

KERNEL = "linux.uml"
MODULES = Path("/usr/lib/uml/modules")
TUN = Path("/dev/net/tun")
CPUINFO = Path("/proc/cpuinfo")
MEMORY = "96M"
BOOT_S = 60.0
"""Longest that booting may take: 2 s on an idle machine, and a test machine is not idle."""
ANSWER_S = 5.0
"""Longest that a change of shape may take."""
BOOT_POLL_S = 0.02
ANSWER_POLL_S = 0.002
LARGEST_LOG_BYTES = 1_000_000

_READY = "tandem-router-ready"
LOADED = ("sch_netem", "sch_prio", "cls_u32")
"""Of the router's kernel: delay, rate and loss; and what tells the packets of one port from the others."""
_NEEDS = "This kernel has no netem, so the test network needs a User-Mode-Linux router"

Clock = Callable[[], float]
Sleep = Callable[[float], None]


def module(modules: Path = MODULES) -> Path:
    """The netem module of the installed User-Mode-Linux kernel. Raises NetLabError with what to install."""
    tools.which("insmod")
    found = sorted(modules.glob("*/kernel/net/sched/sch_netem.ko"))
    if tools.find(KERNEL) is None or not found:
        what = f"`{KERNEL}`" if tools.find(KERNEL) is None else f"{modules}/*/kernel/net/sched/sch_netem.ko"
        raise NetLabError(
            f"{_NEEDS}, but {what} was not found; install it with `apt-get install user-mode-linux kmod`."
        )
    if not TUN.exists():
        raise NetLabError(
            f"{_NEEDS}, but {TUN} does not exist, which joins it to the hosts; run `modprobe tun`."
        )
    return found[-1]


def make(layout: Layout, run: Runner) -> None:
    """Everything but the router itself: a veth, a bridge and a tap on each side. Raises NetLabError."""
    router = layout.namespace("router")
    for host in HOSTS:
        inner = ["ip", "-n", router, "link"]
        ends = ["address", layout.mac(host), "type", "veth", "peer", "name", f"to-{host}", "netns", router]
        run(["ip", "link", "add", INTERFACE, "netns", layout.namespace(host), *ends])
        run([*inner, "add", f"bridge-{host}", "type", "bridge"])
        run(["ip", "-n", router, "tuntap", "add", f"tap-{host}", "mode", "tap"])
        for each in (f"to-{host}", f"tap-{host}"):
            run([*inner, "set", each, "master", f"bridge-{host}"])
            run([*inner, "set", each, "up"])
        run([*inner, "set", f"bridge-{host}", "up"])
        _configure(layout, host, run)


def _configure(layout: Layout, host: str, run: Runner) -> None:
    """A host's address, and its route to the other one."""
    ip = ["ip", "-n", layout.namespace(host)]
    run([*ip, "address", "add", f"{layout.address(host)}/{layout.half(host).prefixlen}", "dev", INTERFACE])
    run([*ip, "link", "set", INTERFACE, "up"])
    run([*ip, "route", "add", str(layout.half(other(host))), "via", str(layout.gateway(host))])
    add_neighbour(layout, host, str(layout.gateway(host)), layout.router_mac(host), run)


def init_script(layout: Layout, netem: Path) -> str:
    """What the router's kernel runs as its only program."""
    lines = [
        "#!/bin/sh",
        "export PATH=/usr/sbin:/usr/bin:/sbin:/bin",
        "mount -t proc proc /proc",
        *(f"insmod {shlex.quote(str(netem.with_stem(name)))}" for name in LOADED),
        "[ ! -e /proc/sys/net/ipv6 ] || echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6",
    ]
    for number, host in enumerate(HOSTS):
        device = f"dev vec{number}"
        lines += [
            f"ip link set {device} address {layout.router_mac(host)}",
            f"ip address add {layout.gateway(host)}/{layout.half(host).prefixlen} {device}",
            f"ip link set {device} up",
            f"ip neighbour replace {layout.address(host)} lladdr {layout.mac(host)} {device} nud permanent",
        ]
    lines += ["echo 1 >/proc/sys/net/ipv4/ip_forward", "stty -echo", *map(_tc_line, commands(Shape()))]
    return "\n".join([*lines, f"echo {_READY}", "exec tc -force -batch -", ""])


def commands(wanted: Shape) -> list[str]:
    """What to tell the router's `tc` for a shape: its two interfaces shape one way each."""
    return [" ".join(each) for number in range(len(HOSTS)) for each in wanted.commands(f"vec{number}")]


def _tc_line(command: str) -> str:
    return f"tc {command}"


@cache
def has_amx(cpuinfo: Path = CPUINFO) -> bool:
    """Whether this processor has registers with which User-Mode-Linux cannot cope (`without_xstate`)."""
    return re.search(r"^flags\b.* amx_tile\b", cpuinfo.read_text("utf-8"), re.MULTILINE) is not None


def kernel_command(kernel: str = KERNEL) -> list[str]:
    """How a User-Mode-Linux kernel is started on this processor."""
    return [*([sys.executable, "-I", without_xstate.__file__] if has_amx() else []), tools.which(kernel)]


def kernel_arguments() -> list[str]:
    """What the command line of such a kernel must have on this processor."""
    return [without_xstate.VARIABLE] if has_amx() else []


class Router:
    """The router of one network; `folder` holds its files: init script, console and log."""

    def __init__(self, layout: Layout, folder: Path, clock: Clock, sleep: Sleep) -> None:
        self._layout = layout
        self._folder = folder
        self._clock = clock
        self._sleep = sleep

    def boot(self, netem: Path, kernel: str = KERNEL) -> int:
        """Starts it and waits until it is ready; returns its process id. Raises NetLabError if it does not come."""
        self._folder.mkdir(mode=0o700)
        self._init.write_text(init_script(self._layout, netem), "utf-8")
        self._init.chmod(0o700)
        os.mkfifo(self._console, 0o600)
        pid = self._start(kernel)
        until_s = self._clock() + BOOT_S
        while _READY not in self._said():
            has_ended = os.waitpid(pid, os.WNOHANG) != (0, 0)
            if has_ended or self._clock() > until_s:
                raise NetLabError(
                    f"The router must be ready within {BOOT_S:g} s, but it {'ended' if has_ended else 'is not'}; "
                    f"its last words: {_last(self._said())}"
                )
            self._sleep(BOOT_POLL_S)
        return pid

    def _start(self, kernel: str) -> int:
        """The process, in a session of its own. It holds both ends of its console, which therefore never ends."""
        enter = [
            tools.which("ip"),
            "netns",
            "exec",
            self._layout.namespace("router"),
            *kernel_command(kernel),
        ]
        console = os.open(self._console, os.O_RDWR)
        log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        files = [
            (os.POSIX_SPAWN_DUP2, console, 0),
            (os.POSIX_SPAWN_DUP2, log, 1),
            (os.POSIX_SPAWN_DUP2, log, 2),
        ]
        try:
            # Not a Popen, which would complain when it is forgotten: the router outlives this process.
            return os.posix_spawn(
                enter[0], [*enter, *self._arguments()], {"PATH": tools.PATH}, file_actions=files, setsid=True
            )
        finally:
            os.close(console)
            os.close(log)

    def _arguments(self) -> list[str]:
        """The kernel's command line."""
        taps = [f"vec{i}:transport=tap,ifname=tap-{host},depth=128" for i, host in enumerate(HOSTS)]
        files = ["rootfstype=hostfs", "rootflags=/", "ro", f"init={self._init}"]
        own = [f"umid={self._layout.namespace('router')}", f"uml_dir={self._folder}/"]
        console = ["panic=-1", "con=null", "con0=fd:0,fd:1"]
        return [f"mem={MEMORY}", *files, *own, *taps, *console, *kernel_arguments()]

    def shape(self, pid: int, wanted: Shape) -> None:
        """Shapes both ways and returns when that is done; pid: the router's.

        Raises NetLabError if it is gone, refuses or is silent.
        """
        if not namespaces.is_running(pid):
            raise NetLabError(
                f"The router of {self._layout.name!r} must be running, but it is not; restart the network with "
                f"`tandem lab netlab down --name {self._layout.name}` and `up`."
            )
        self._shorten_log()
        start = self._log.stat().st_size
        # `tc` has no echo: a word that it does not know comes back in its complaint, behind all that it did before.
        # The complaint is two writes; who goes on between them leaves the second to the next shape's answer.
        token = f"done-{os.getpid()}-{round(1e6 * self._clock())}"
        self._tell("\n".join([*commands(wanted), token, ""]))
        until_s = self._clock() + ANSWER_S
        own = re.compile(rf'Object "{token}"[^\n]*\n\s*Command failed[^\n]*\n')
        while not (end := own.search(said := self._said(start))):
            if self._clock() > until_s:
                raise NetLabError(
                    f"The router must answer within {ANSWER_S:g} s, but it said nothing; restart the network with "
                    f"`tandem lab netlab down --name {self._layout.name}` and `up`."
                )
            self._sleep(ANSWER_POLL_S)
        complaint = said[: end.start()].strip()
        if re.search(r"\bError\b|RTNETLINK|Command failed|What is", complaint):
            raise NetLabError(f"The router must take the shape {wanted}, but it said: {_last(complaint)}")

    def _tell(self, text: str) -> None:
        """Writes to the console in one piece, so that two processes cannot mix their lines."""
        console = os.open(
            self._console, os.O_RDWR | os.O_NONBLOCK
        )  # also for reading, so that opening never waits
        try:
            os.write(console, text.encode())
        finally:
            os.close(console)

    def _said(self, start: int = 0) -> str:
        """What the router has written to its log, from a byte on; all of it if another process has emptied it."""
        with open(self._log, "rb") as file:
            file.seek(start if start <= os.fstat(file.fileno()).st_size else 0)
            return file.read().decode("utf-8", "replace")

    def _shorten_log(self) -> None:
        """Empties a log that has grown; the router appends, so it continues at the start."""
        if self._log.stat().st_size > LARGEST_LOG_BYTES:
            os.truncate(self._log, 0)

    @property
    def _init(self) -> Path:
        return self._folder / "init"

    @property
    def _console(self) -> Path:
        return self._folder / "console"

    @property
    def _log(self) -> Path:
        return self._folder / "log"


def _last(text: str) -> str:
    """The last lines of a log, in one."""
    return " | ".join(text.split("\n")[-5:]).strip(" |") or "none"
