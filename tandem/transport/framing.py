"""Frames in a byte stream: each is preceded by its length as a varint.

Knows nothing of sockets or of what a frame holds.
"""

from __future__ import annotations

from tandem.errors import ProtocolError
from tandem.protocol.wire import MAX_FRAME_BYTES, write_varint


def join_frames(frames: list[bytes]) -> bytes:
    """One write for all `frames`."""
    out = bytearray()
    for frame in frames:
        write_varint(out, len(frame))
        out += frame
    return bytes(out)


class FrameSplitter:
    """Cuts a received byte stream into frames."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, received: bytes) -> list[bytes]:
        """The frames that `received` completes; ProtocolError where a length exceeds MAX_FRAME_BYTES."""
        self._buffer += received
        frames: list[bytes] = []
        position = 0
        while (header := self._length_at(position)) is not None:
            length, start = header
            if start + length > len(self._buffer):
                break
            frames.append(bytes(self._buffer[start : start + length]))
            position = start + length
        del self._buffer[:position]
        return frames

    def _length_at(self, position: int) -> tuple[int, int] | None:
        value = shift = 0
        while position < len(self._buffer):
            byte = self._buffer[position]
            value |= (byte & 0x7F) << shift
            position += 1
            if value > MAX_FRAME_BYTES or shift > 28:
                raise ProtocolError(
                    f"A frame has at most {MAX_FRAME_BYTES} bytes, a length of {value} was announced; "
                    "check what connects to this port."
                )
            if byte < 0x80:
                return value, position
            shift += 7
        return None
