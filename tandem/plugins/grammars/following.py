"""What may follow in an answer that has a grammar: a JSON schema, a regular expression, or Lark, by llguidance.

    decoder --start, kill--> fork server --fork--> follower of one grammar
    decoder <--prefixes, masks--> follower

A few bytes can ask for hours and gigabytes: llguidance has limits of its own, but does not count what `multipleOf`
takes, and no thread can be ended. So each grammar is followed in a process of its own, which the kernel ends when it
has had its time or memory, and which is killed with its query. It is forked, within milliseconds, by a process that has
read the tokenizer and nothing else. These processes import this module, so it imports nothing heavy.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from tandem.engine.kv import common_length
from tandem.errors import Code, GenerationError, QueryError, TandemError, explain_missing, first_line
from tandem.plugins.grammars.schemas import simplify
from tandem.system.processes import environment, limit_time

if TYPE_CHECKING:
    from llguidance import LLTokenizer

_OF_JSON: Any = {"whitespace_pattern": r" ?|\n {0,12}", "lenient": True}
"""Where JSON allows any white space: none, a space, or a new line and its indentation. A small model would go on with
white space without an end. Formats and keywords that llguidance does not know are left out."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of what a grammar may cost before it ends its query."""

    build_s: float = 2.0  # of a processor
    mask_s: float = 0.25  # of a processor, for what may follow one prefix
    memory_mb: int = 128  # besides the tokenizer, which all share
    num_lexer_states: int = 60_000  # of llguidance; one takes a kilobyte or two


LIMITS = Limits()
WAIT_FACTOR = 8
"""Times its processor time that a follower may take where others keep it waiting."""
NICENESS = 5
"""The niceness of a follower: models go first."""
MAX_SERVERS = 4
"""Fork servers that are kept, each with the tokenizer of one model."""
KEPT_MASKS = 64
"""The newest masks of one grammar that are kept: more than one pass asks for."""

_STARTED, _BUILT, _MASK, _NO_TOKENIZER, _NO_GRAMMAR, _STOPPED = range(6)
_START, _KILL = range(2)
_ANSWER, _QUESTION, _ORDER = struct.Struct("<IB"), struct.Struct("<II"), struct.Struct("<BI")
"""Length and kind of an answer; how many tokens of the last prefix stay and how many follow; what to do with which
grammar."""


# ---- in the process that asks --------------------------------------------------------------------------------


def open_grammar(
    model: tuple[str, int, tuple[int, ...]], grammar: str, vocab_size: int, ends: Sequence[int]
) -> FollowedGrammar:
    """Follow a query's grammar with a model's tokens. Raises GenerationError where that cannot be done here.

    model: its tokenizer as JSON, or {"pieces": all, each byte as one character}, the number of its tokens, and those
    that end an answer. The rest: of the query.
    """
    return FollowedGrammar(find_server(*model), grammar, vocab_size, ends)


class FollowedGrammar:
    """A `Grammar` that a process of its own follows. Safe for threads."""

    def __init__(
        self,
        server: ForkServer,
        grammar: str,
        vocab_size: int,
        ends: Sequence[int],
        limits: Limits | None = None,
    ) -> None:
        """Has it built. grammar: as of a query, whose tokens are the first `vocab_size` of the model's. ends: those
        that end an answer. limits: default: LIMITS."""
        self._limits = limits or LIMITS
        options = {"grammar": grammar, "vocab_size": vocab_size, "ends": list(ends)}
        self._connection, number = server.start(json.dumps({**options, "limits": asdict(self._limits)}))
        self._lock = threading.Lock()
        self._received = bytearray()
        self._stage: int | None = None  # _STARTED or _BUILT
        self._asked: deque[tuple[int, ...]] = deque()  # prefixes that are not answered yet
        self._last: tuple[int, ...] = ()  # the prefix that was asked last
        self._masks: dict[tuple[int, ...], bytes] = {}  # by prefix
        self._problem: TandemError | None = None
        self._end = weakref.finalize(self, _end_follower, server, self._connection, number)

    def fileno(self) -> int:
        """Readable once `poll` may have news."""
        return self._connection.fileno()

    def expect(self, prefixes: Sequence[Sequence[int]]) -> None:
        """Let what may follow these prefixes be computed, before `allowed` needs it."""
        with self._lock:
            for prefix in map(tuple, prefixes):
                if prefix not in self._masks and prefix not in self._asked:
                    self._ask(prefix)

    def poll(self, left_s: Callable[[], float] = lambda: 0.0) -> bool:
        """Whether the grammar is built and all that was expected is here, now or before no time is left.

        left_s: the seconds that are left. Raises QueryError where it cannot be followed or costs too much,
        GenerationError where that is not its fault.
        """
        with self._lock:
            self._check()
            while self._stage != _BUILT or self._asked:
                if not self._receive(max(0.0, left_s())):
                    return False
            return True

    def allowed(self, prefix: Sequence[int]) -> bytes:
        """Whether each token may follow: a bit for each, the lowest of a byte first. After what no answer may be, an
        end alone. Waits; raises as `poll`."""
        key = tuple(prefix)
        self.expect([key])
        with self._lock:
            self._check()
            while key not in self._masks:
                self._receive(None)
            return self._masks[key]

    def close(self) -> None:
        """End the process, whatever it computes; who waits for it gets an error."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._problem = self._problem or QueryError("The query has ended.", code=Code.CANCELLED)
            self._end()

    def _ask(self, prefix: tuple[int, ...]) -> None:
        num_kept = len(self._last) if prefix[: len(self._last)] == self._last else 0
        new = array("I", prefix[num_kept:])
        with suppress(OSError):  # the process has ended, as is found out on receipt
            self._connection.settimeout(None)
            self._connection.sendall(_QUESTION.pack(num_kept, len(new)) + new.tobytes())
        self._asked.append(prefix)
        self._last = prefix

    def _receive(self, wait_s: float | None) -> bool:
        """Take in what has arrived; False: nothing has within so many seconds."""
        try:
            self._connection.settimeout(wait_s)
            data = self._connection.recv(1 << 18)
        except (BlockingIOError, TimeoutError):
            return False
        except OSError:
            data = b""
        if not data:
            self._problem = self._explain_end()
        self._received += data
        while len(self._received) >= _ANSWER.size:
            size, kind = _ANSWER.unpack_from(self._received)
            if len(self._received) < (end := _ANSWER.size + size):
                break
            self._take(kind, bytes(self._received[_ANSWER.size : end]))
            del self._received[:end]
        self._check()
        return True

    def _take(self, kind: int, body: bytes) -> None:
        if kind == _MASK:
            self._masks[self._asked.popleft()] = body
            if len(self._masks) > KEPT_MASKS:
                del self._masks[next(iter(self._masks))]
        elif kind in (_STARTED, _BUILT):
            self._stage = kind
        else:
            self._problem = _explain(kind, body.decode(), self._num_followed)

    def _check(self) -> None:
        if self._problem is not None:
            raise self._problem

    def _explain_end(self) -> TandemError:
        """Why the process ended without a word."""
        if self._stage is None:
            return GenerationError(
                "A grammar is followed in a process of its own, which could not be started; ask again, or free memory "
                "and processes.",
                code=Code.LOST,
            )
        limits, is_built = self._limits, self._stage == _BUILT
        what = f"for token {self._num_followed + 1}" if is_built else "before the first token"
        return QueryError(
            f"The grammar of the answer takes more than {limits.mask_s if is_built else limits.build_s:g} s of a "
            f"processor or {limits.memory_mb} MB of memory {what}; simplify it, or leave it out.",
            code=Code.OVER_LIMIT,
            option="grammar",
        )

    @property
    def _num_followed(self) -> int:
        return len(self._asked[0] if self._asked else self._last)


def _explain(kind: int, reason: str, num_followed: int) -> TandemError:
    reason = " ".join(reason.split()).rstrip(".") or "no reason is known"
    if kind == _NO_TOKENIZER:
        return GenerationError(
            f"The model's tokenizer cannot be used with a grammar ({reason:.200}); ask without one."
        )
    if kind == _NO_GRAMMAR:
        return QueryError(
            f"The grammar of the answer cannot be followed ({reason:.300}); correct it, or leave it out.",
            option="grammar",
        )
    return QueryError(
        f"The grammar of the answer is too complex for token {num_followed + 1} ({reason:.300}); simplify it, or leave "
        "it out.",
        code=Code.OVER_LIMIT,
        option="grammar",
    )


def _end_follower(server: ForkServer, connection: socket.socket, number: int) -> None:
    server.kill(number)
    connection.close()


class ForkServer:
    """A process that has read a model's tokenizer and forks those that follow grammars. Safe for threads."""

    def __init__(self, tokenizer_json: str, vocab_size: int, ends: Sequence[int]) -> None:
        """vocab_size, ends: of the model. Raises GenerationError if it cannot be started."""
        self._numbers = itertools.count()
        self._lock = threading.RLock()  # a grammar may be collected while an order is given
        self._orders, other = socket.socketpair()
        settings = {"vocab_size": vocab_size, "ends": list(ends)}
        try:
            with other, tempfile.TemporaryFile() as file:
                file.write(json.dumps(settings).encode() + b"\n" + tokenizer_json.encode())
                file.seek(0)
                command = f"from {__name__} import serve; serve({other.fileno()})"
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", command],
                    stdin=file,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=environment(TOKENIZERS_PARALLELISM="false"),
                    pass_fds=(other.fileno(),),
                    process_group=0,  # Ctrl-C is for the process that asks; in another session niceness would not count
                )
        except OSError as error:
            raise GenerationError(
                f"A grammar is followed in a process of its own, which cannot be started ({error.strerror}); free "
                "memory and processes, or ask without a grammar."
            ) from None
        self.pid = self._process.pid  # the parent of all that follow a grammar
        weakref.finalize(self, _end_server, self._orders, self._process)

    def is_running(self) -> bool:
        """Whether it can start anything."""
        return self._process.poll() is None

    def start(self, asked: str) -> tuple[socket.socket, int]:
        """Fork a follower. asked: what a `Grammar` asks for, as JSON. Returns the connection to it, and its number."""
        number = next(self._numbers)
        own, other = socket.socketpair()
        with other, tempfile.TemporaryFile() as file:
            file.write(asked.encode())
            file.seek(0)
            self._send(_START, number, [other.fileno(), file.fileno()])
        return own, number

    def kill(self, number: int) -> None:
        """End the process of that number, if it runs."""
        self._send(_KILL, number, [])

    def _send(self, order: int, number: int, files: Sequence[int]) -> None:
        with self._lock, suppress(OSError):  # it has ended, as whoever waits for an answer finds out
            socket.send_fds(self._orders, [_ORDER.pack(order, number)], list(files))


def _end_server(orders: socket.socket, process: subprocess.Popen[bytes]) -> None:
    orders.close()  # whereupon it kills what it has forked, and ends
    try:
        process.wait(1.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


_servers: dict[tuple[str, int, tuple[int, ...]], ForkServer] = {}
_servers_lock = threading.Lock()


def find_server(tokenizer_json: str, vocab_size: int, ends: tuple[int, ...]) -> ForkServer:
    """The server of a model, started if it does not run; nothing that a query may ask makes another. Raises
    GenerationError if it cannot be started, or llguidance is missing."""
    if find_spec("llguidance") is None:
        with explain_missing("A grammar for answers", GenerationError):
            raise ModuleNotFoundError(name="llguidance")
    key = tokenizer_json, vocab_size, ends
    with _servers_lock:
        server = _servers.pop(key, None)
        if server is None or not server.is_running():
            server = ForkServer(*key)
        _servers[key] = server
        if len(_servers) > MAX_SERVERS:
            del _servers[next(iter(_servers))]  # it ends with its last grammar
        return server


# ---- the fork server -----------------------------------------------------------------------------------------


def serve(orders_file: int) -> None:
    """Obey orders until nobody is there to give any."""
    orders = socket.socket(fileno=orders_file)
    settings = json.loads(sys.stdin.buffer.readline())
    try:
        tokenizer: LLTokenizer | str = read_tokenizer(sys.stdin.buffer.read().decode(), **settings)
    except ValueError as error:
        tokenizer = first_line(error)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    woken, wakes = os.pipe()
    for end in (woken, wakes):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    gc.collect()
    gc.freeze()  # shared memory stays shared
    pids: dict[int, int] = {}  # by number of the grammar
    while True:
        ready, _, _ = select.select([orders.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 1 << 12)
            _reap(pids)
        if orders.fileno() in ready:
            message, files, _, _ = socket.recv_fds(orders, _ORDER.size, 2)
            if len(message) < _ORDER.size:
                break
            order, number = _ORDER.unpack(message)
            if order == _START:
                with suppress(OSError):  # there may be no more processes
                    pids[number] = os.fork()
                    if pids[number] == 0:
                        orders.close()
                        _follow_and_exit(tokenizer, *files)
            elif number in pids:
                os.kill(pids[number], signal.SIGKILL)
            for file in files:
                os.close(file)
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)


def _reap(pids: dict[int, int]) -> None:
    """Forget the processes that have ended."""
    with suppress(ChildProcessError):
        while ended := os.waitpid(-1, os.WNOHANG)[0]:
            for number in [number for number, pid in pids.items() if pid == ended]:
                del pids[number]


def read_tokenizer(tokenizer_json: str, vocab_size: int, ends: Sequence[int]) -> LLTokenizer:
    """A model's tokens as llguidance knows them; half a second for 50,000. Raises ValueError where it takes texts apart
    in another way than the model's tokenizer."""
    from llguidance import LLTokenizer

    # What a grammar leaves no choice of is tokenised as the tokenizer would, but not as if a text began there.
    within = json.loads(tokenizer_json, object_hook=_without_prefix_space)
    source: Any = _Listed(within["pieces"], ends) if "pieces" in within else json.dumps(within)
    tokenizer = LLTokenizer(source, n_vocab=vocab_size, eos_token=list(ends))
    if any(tokenizer.decode_bytes(tokenizer.tokenize_str(text)).decode() != text for text in _SAMPLES):
        raise ValueError("llguidance takes texts apart otherwise")
    return tokenizer


class _Listed:
    """Pieces of text as a tokenizer of llguidance, which asks for these attributes."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, pieces: Sequence[str], ends: Sequence[int]) -> None:
        """pieces: each byte as the character of that number."""
        self.eos_token_id, self.special_token_ids = ends[0], list(ends)
        self.tokens = [
            b"\xff<end>" if number in ends else piece.encode("latin-1") for number, piece in enumerate(pieces)
        ]
        self._numbers = {text: number for number, text in enumerate(self.tokens)}
        self._longest = max(map(len, self.tokens))

    def __call__(self, text: str) -> list[int]:
        """The longest pieces, from the beginning on."""
        left, found = text.encode(), list[int]()
        while left:
            lengths = range(min(len(left), self._longest), 0, -1)
            length = next((each for each in lengths if left[:each] in self._numbers), 0)
            found += [self._numbers[left[:length]]] if length else []
            left = left[max(1, length) :]
        return found


_SAMPLES = ("yes", " yes", '{"a": 1}', "\n  b", "Zürich 3")


def _without_prefix_space(value: dict[str, Any]) -> dict[str, Any]:
    return value | {"add_prefix_space": False} if "add_prefix_space" in value else value


# ---- the process that follows one grammar --------------------------------------------------------------------


def _follow_and_exit(tokenizer: LLTokenizer | str, connection: int, file: int) -> None:
    """Answer until nobody asks. The kernel ends the process if it takes too much."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF, signal.SIGALRM})
        os.nice(NICENESS)
        with socket.socket(fileno=connection) as asked, open(file, "rb") as text:
            options = json.loads(text.read())
            _follow(tokenizer, asked, Limits(**options.pop("limits")), options)
    finally:
        os._exit(0)


def _limit_memory(num_bytes: int) -> None:
    """Limit what is allocated from now on. Where the system does not say what there is, time alone limits memory."""
    with suppress(OSError, ValueError), open("/proc/self/statm", "rb") as file:
        most = int(file.read().split()[0]) * resource.getpagesize() + num_bytes
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _follow(
    tokenizer: LLTokenizer | str, asked: socket.socket, limits: Limits, options: dict[str, Any]
) -> None:
    def answer(kind: int, body: bytes = b"") -> None:
        asked.sendall(_ANSWER.pack(len(body), kind) + body)

    failure = _NO_TOKENIZER
    try:
        answer(_STARTED)
        if isinstance(tokenizer, str):
            raise ValueError(tokenizer)
        failure = _NO_GRAMMAR
        _limit_memory(limits.memory_mb * 1_000_000)
        limit_time(limits.build_s, WAIT_FACTOR)
        masks = Masks(tokenizer, **options, limits=limits)
        limit_time(0)
        answer(_BUILT)
        failure, prefix = _STOPPED, list[int]()
        questions = asked.makefile("rb")
        while header := questions.read(_QUESTION.size):
            num_kept, num_new = _QUESTION.unpack(header)
            prefix[num_kept:] = array("I", questions.read(array("I").itemsize * num_new))
            limit_time(limits.mask_s, WAIT_FACTOR)
            mask = masks.allowed(prefix)
            limit_time(0)
            answer(_MASK, mask)
    except ValueError as error:
        answer(failure, str(error)[:1000].encode("utf-8", "replace"))


class Masks:
    """Computes what may follow by one grammar, from the prefix alone, in whatever order prefixes come."""

    def __init__(
        self, tokenizer: LLTokenizer, grammar: str, vocab_size: int, ends: Sequence[int], limits: Limits
    ) -> None:
        """All but `tokenizer`: as of a `Grammar`. Raises ValueError where llguidance cannot follow it."""
        from llguidance import LLMatcher, LLParserLimits

        most = LLParserLimits(max_lexer_states=limits.num_lexer_states, verbose_errors=False)
        self._matcher = LLMatcher(tokenizer, compile_grammar(grammar), log_level=0, limits=most)
        if problem := self._matcher.get_error():
            raise ValueError(problem)
        self._model_ends = [token for token in tokenizer.eos_tokens if token < tokenizer.vocab_size]
        self._ends = [token for token in ends if token < vocab_size]
        self._vocab_size = vocab_size
        self._consumed: list[int] = []

    def allowed(self, prefix: Sequence[int]) -> bytes:
        """A mask as `Grammar.allowed` gives it. Raises ValueError where llguidance gives up, or nothing may follow."""
        shared = common_length(self._consumed, prefix)
        if shared < len(self._consumed):
            self._matcher.rollback(len(self._consumed) - shared)
            del self._consumed[shared:]
        rest = list(prefix[shared:])
        self._consumed += rest[: self._matcher.try_consume_tokens(rest)]
        is_right = len(self._consumed) == len(prefix)
        mask = self._of_query(self._matcher.compute_bitmask()) if is_right else b""
        if problem := self._matcher.get_error():
            raise ValueError(problem)
        if any(mask):
            return mask
        if not self._ends:
            raise ValueError("no token may follow, and none ends the answer")
        return self._of_query(b"", may_end=True)

    def _of_query(self, mask: bytes, *, may_end: bool = False) -> bytes:
        """A mask of the model's tokens as one of the query's, which may have fewer and others that end an answer."""
        bits = bytearray(mask.ljust((self._vocab_size + 7) // 8, b"\0"))
        may_end = may_end or any(bits[token // 8] >> token % 8 & 1 for token in self._model_ends)
        del bits[(self._vocab_size + 7) // 8 :]
        bits[-1] &= 0xFF >> -self._vocab_size % 8
        for token in self._model_ends:
            if token < self._vocab_size:
                bits[token // 8] &= ~(1 << token % 8)
        for token in self._ends:
            bits[token // 8] = bits[token // 8] & ~(1 << token % 8) | may_end << token % 8
        return bytes(bits)


def compile_grammar(grammar: str) -> str:
    """llguidance's form of a query's grammar. Raises ValueError."""
    from llguidance import LLMatcher

    make: Mapping[str, Any] = {
        "json_schema": lambda schema: LLMatcher.grammar_from_json_schema(
            simplify(schema), overrides=_OF_JSON
        ),
        "regex": LLMatcher.grammar_from_regex,
        "lark": LLMatcher.grammar_from_lark,
    }
    try:
        ((kind, value),) = json.loads(grammar).items()
        compiled: str = make[kind](value)
        return compiled
    except (TypeError, KeyError, AttributeError, RecursionError) as error:  # a peer may send anything
        raise ValueError(first_line(error)) from None
