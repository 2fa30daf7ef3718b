"""`tandem chat`: one question after the other on one cluster; earlier turns are context for the next question.

Answers go to stdout; stages, notes and errors go to stderr. Reads lines, so it works in a pipe as on a terminal.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from tandem.cli.answer import Transcript, follow
from tandem.cli.ask import note_toy
from tandem.cli.options import QUESTION_SETTINGS, AskOptions, PlaceOptions, SettingsOptions, with_options
from tandem.cli.output import StageLog, emit, warn
from tandem.client.answers import new_seed
from tandem.conversation import Message
from tandem.errors import TandemError, did_you_mean

if TYPE_CHECKING:
    from tandem.client.device import RunningDevice
    from tandem.client.tandem import Tandem
    from tandem.config.schema import DecodingConfig

COMMANDS = {
    "/sources": "documents of the last answer, with passages",
    "/stats": "its statistics",
    "/reset": "forget the conversation so far",
    "/help": "these lines",
    "/quit": "leave",
}
PROMPT = "> "
WELCOME = "Ask a question; /help lists the commands, /quit or Ctrl-D leaves."


@with_options(*QUESTION_SETTINGS)
def chat(*, query: AskOptions, place: PlaceOptions, settings: SettingsOptions) -> int:
    """Ask one question after the other; each answer is context for the next question.

    Documents are retrieved for every question separately. Lines that begin with / are commands: /sources and /stats of
    the last answer, /reset for a new conversation, /help, /quit. Ctrl-C cancels an answer, Ctrl-D leaves.
    """
    log = StageLog()
    config = settings.load(log)
    note_toy(config)
    with place.open_to_ask(config, log) as tandem:
        return Chat(tandem, query, config.decoding).run()


class Chat:
    """The loop, the conversation so far, and the last answer."""

    def __init__(self, tandem: Tandem | RunningDevice, query: AskOptions, decoding: DecodingConfig) -> None:
        """query: how each question is asked."""
        self._tandem = tandem
        self._query = query
        self._decoding = decoding
        self._history: list[Message] = []
        self._last: Transcript | None = None
        self._num_failed = 0

    def run(self) -> int:
        """Read and answer lines until the end of input or /quit; 1 if a question of a pipe failed."""
        is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        if is_terminal:
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401  (lines can be edited and fetched again)
            emit(WELCOME, to_stderr=True)
        while (line := self._read(PROMPT if is_terminal else "")) not in (None, "/quit"):
            if line and not is_terminal:
                emit(f"{PROMPT}{line}")  # a terminal shows what was typed
            if line:
                self._obey(line) if line.startswith("/") else self._ask(line)
        return 0 if is_terminal or not self._num_failed else 1

    def _read(self, prompt: str) -> str | None:
        """The next line, stripped; None at the end of input. Ctrl-C on a terminal only empties the line."""
        try:
            return input(prompt).strip()
        except EOFError:
            emit(end="\n" if prompt else "")
            return None
        except KeyboardInterrupt:
            if not prompt:
                raise
            emit()
            return ""

    def _obey(self, line: str) -> None:
        last = self._last
        match line:
            case "/sources" if last:
                emit(*last.source_lines(with_passages=True), sep="\n")
            case "/stats" if last:
                emit(*last.statistics_lines(), sep="\n")
            case "/sources" | "/stats":
                warn("There is no answer yet; ask a question.")
            case "/reset":
                self._history.clear()
                self._last = None
                emit("A new conversation.", to_stderr=True)
            case "/help":
                emit(*(f"  {name:<9} {meaning}" for name, meaning in COMMANDS.items()), sep="\n")
            case _:
                warn(f"There is no command {line!r:.60}; {did_you_mean(line, COMMANDS)}")

    def _ask(self, text: str) -> None:
        """Answer one question; the turn joins the conversation if it was answered."""
        seed = new_seed() if self._query.seed is None else self._query.seed
        options = {"seed": seed, "show_drafts": False, **self._query.options()}
        try:
            stream = self._tandem.stream(text, history=self._history or None, **options)
            last = Transcript(
                text, seed, self._query.only, self._decoding, follow(stream, StageLog(is_quiet=True))
            )
            last.done.check()
        except KeyboardInterrupt:
            warn("the answer was cancelled")
        except TandemError as error:
            self._num_failed += 1
            warn(f"{error}{' /reset begins a new conversation.' if self._history else ''}")
        else:
            for note in (*last.answer.notes, *filter(None, [last.answer.degraded_reason])):
                warn(note)
            self._last = last
            self._history += [Message("user", text), Message("assistant", last.answer.text)]
