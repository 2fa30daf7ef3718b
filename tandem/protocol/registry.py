"""Binary form of the frozen dataclasses in `tandem.protocol.messages`: a tag byte, then field by field, in order.

No pickle: a frame can only become one of the registered classes, and bytes after the last field are an error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from tandem.errors import ProtocolError
from tandem.protocol.wire import MAX_FRAME_BYTES, FieldFormat, FrameCursor

C = TypeVar("C", bound=type[Any])


class Registry:
    """Maps one tag byte to one message class, both ways."""

    def __init__(self) -> None:
        self._by_tag: dict[int, tuple[type[Any], tuple[tuple[str, FieldFormat[Any]], ...] | None]] = {}
        self._tags: dict[type[Any], int] = {}
        self._retired: dict[int, str] = {}

    def retire(self, tag: int, sentence: str) -> None:
        """Refuse frames of an old version, which began with this tag, with that sentence."""
        self._retired[tag] = sentence

    def message(self, tag: int) -> Callable[[C], C]:
        """Class decorator: this frozen dataclass travels under `tag` (0 to 255)."""

        def register(cls: C) -> C:
            if tag in self._by_tag:
                raise ValueError(f"tag {tag} is taken by {self._by_tag[tag][0].__name__}")
            self._tags[cls] = tag
            self._by_tag[tag] = (cls, None)  # the fields are resolved at first use, when all classes exist
            return cls

        return register

    def classes(self) -> tuple[type[Any], ...]:
        """All registered classes."""
        return tuple(self._tags)

    def tag(self, cls: type[Any]) -> int:
        """The byte that messages of this class begin with."""
        return self._tags[cls]

    def write(self, out: bytearray, message: Any) -> None:
        """Append tag and fields of `message`."""
        tag = self._tags[type(message)]
        out.append(tag)
        for name, form in self._by_tag[tag][1] or self._fields(tag):
            form.write(out, getattr(message, name))

    def read(self, cursor: FrameCursor, allowed: Collection[type[Any]] = ()) -> Any:
        """The message at the cursor; ProtocolError if it is not one of the `allowed` classes (if given)."""
        tag = cursor.take(1)[0]
        if tag not in self._by_tag:
            raise ProtocolError(
                self._retired.get(tag)
                or f"A frame begins with the unknown tag {tag}; "
                "check that both parties run the same version of Tandem."
            )
        cls, fields = self._by_tag[tag]
        if allowed and cls not in allowed:
            raise ProtocolError(
                f"A {cls.__name__} does not belong here; "
                "check that both parties run the same version of Tandem."
            )
        return cls(**{name: form.read(cursor) for name, form in fields or self._fields(tag)})

    def encode(self, message: Any) -> bytes:
        """One whole frame; ProtocolError if it would be too long, or a text in it cannot be written."""
        out = bytearray()
        self.write(out, message)
        if len(out) > MAX_FRAME_BYTES:
            raise ProtocolError(
                f"A {type(message).__name__} of {len(out)} bytes exceeds the {MAX_FRAME_BYTES} bytes that a message "
                "may have; use fewer or shorter documents, or a shorter question."
            )
        return bytes(out)

    def decode(self, frame: bytes, allowed: Collection[type[Any]] = ()) -> Any:
        """The message of one whole frame; ProtocolError if it is malformed, too long, or not `allowed` (if given)."""
        if len(frame) > MAX_FRAME_BYTES:
            raise ProtocolError(
                f"A frame has at most {MAX_FRAME_BYTES} bytes (got {len(frame)}); check the sender."
            )
        cursor = FrameCursor(frame)
        message = self.read(cursor, allowed)
        if cursor.position != len(frame):
            raise ProtocolError(
                f"A frame has {len(frame) - cursor.position} bytes after its last field; "
                "check that both parties run the same version of Tandem."
            )
        return message

    def nested(self, *classes: type[Any]) -> FieldFormat[Any]:
        """A field that holds a message of one of `classes`; so a frame's depth is bounded by its class."""
        return FieldFormat(self.write, lambda cursor: self.read(cursor, classes))

    def _fields(self, tag: int) -> tuple[tuple[str, FieldFormat[Any]], ...]:
        cls, fields = self._by_tag[tag]
        if fields is None:
            hints = get_type_hints(cls, include_extras=True)
            fields = tuple(
                (field.name, _format_of(cls, field.name, hints)) for field in dataclasses.fields(cls)
            )
            self._by_tag[tag] = (cls, fields)
        return fields


def _format_of(cls: type[Any], name: str, hints: dict[str, Any]) -> FieldFormat[Any]:
    hint = hints[name]
    if get_origin(hint) is Annotated:
        for extra in get_args(hint)[1:]:
            if isinstance(extra, FieldFormat):
                return extra
    raise TypeError(f"{cls.__name__}.{name} has no binary form")
