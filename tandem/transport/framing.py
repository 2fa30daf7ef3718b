"""Frames in a byte stream: each is preceded by its length as a varint."""

from __future__ import annotations

from tandem.errors import ProtocolError
from tandem.protocol.wire import MAX_FRAME_BYTES, read_varint, write_varint

_LENGTH_BITS = 35
"""Five bytes of a varint: more than any length that is accepted."""


def join_frames(frames: list[bytes]) -> bytes:
    """One write for all `frames`."""
    out = bytearray()
    for frame in frames:
        write_varint(out, len(frame))
        out += frame
    return bytes(out)


class FrameSplitter:
    """Cuts a received byte stream into frames of at most `max_frame_bytes`, which may change on the way."""

    __slots__ = ("_buffer", "max_frame_bytes")

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()

    @property
    def num_buffered(self) -> int:
        """Bytes that wait for the rest of their frame, or to be taken."""
        return len(self._buffer)

    def append(self, received: bytes) -> None:
        """More bytes of the stream."""
        self._buffer += received

    def take(self) -> bytes | None:
        """The next whole frame; ProtocolError where a length exceeds `max_frame_bytes`."""
        frames, end = self._parse(1)
        del self._buffer[:end]
        return frames[0] if frames else None

    def take_all(self) -> list[bytes]:
        """All whole frames; ProtocolError where a length exceeds `max_frame_bytes`."""
        frames, end = self._parse(None)
        del self._buffer[:end]
        return frames

    def feed(self, received: bytes) -> list[bytes]:
        """The frames that `received` completes; ProtocolError where a length exceeds `max_frame_bytes`."""
        self.append(received)
        return self.take_all()

    def _parse(self, most: int | None) -> tuple[list[bytes], int]:
        frames: list[bytes] = []
        end = 0
        while len(frames) != most and (header := read_varint(self._buffer, end, _LENGTH_BITS)) is not None:
            length, start = header
            if length > self.max_frame_bytes:
                raise ProtocolError(
                    f"A frame of {length} bytes was announced, at most {self.max_frame_bytes} are accepted here; "
                    "check what connects to this port."
                )
            if start + length > len(self._buffer):
                break
            end = start + length
            frames.append(bytes(self._buffer[start:end]))
        return frames, end
