"""What somebody sees who draws the tokens of an answer as their events come, provisional ones included.

A display that receives something it cannot draw truthfully raises. Knows events only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tandem.events import DoneEvent, Event, ProvisionalEvent, RetractEvent, TokenEvent


@dataclass(slots=True)
class Display:
    """Pieces on a screen: those committed, then provisional ones."""

    pieces: list[tuple[int, str]] = field(default_factory=list)  # token and text, by step
    num_committed: int = 0
    num_retracted: int = 0  # pieces

    @property
    def text(self) -> str:
        """What is to be read."""
        return "".join(text for _, text in self.pieces)

    def add(self, event: Event) -> None:
        """Draw one event; AssertionError where it contradicts what is on the screen."""
        match event:
            case ProvisionalEvent():
                if event.step != len(self.pieces):
                    raise AssertionError(f"a provisional token of step {event.step} does not follow")
                self.pieces.append((event.token, event.text))
            case RetractEvent():
                if not self.num_committed <= event.step < len(self.pieces):
                    raise AssertionError(f"there is nothing provisional to retract from step {event.step} on")
                self.num_retracted += len(self.pieces) - event.step
                del self.pieces[event.step :]
            case TokenEvent():
                self._commit(event)
            case DoneEvent() if len(self.pieces) > self.num_committed:
                raise AssertionError("the answer is done, but provisional tokens are left on the screen")

    def _commit(self, event: TokenEvent) -> None:
        if event.step != self.num_committed:
            raise AssertionError(f"step {event.step} is committed out of order")
        if event.step == len(self.pieces):
            self.pieces.append((event.token, event.text))
        elif self.pieces[event.step] != (event.token, event.text):
            raise AssertionError(f"the token of step {event.step} contradicts the provisional one shown")
        self.num_committed += 1
