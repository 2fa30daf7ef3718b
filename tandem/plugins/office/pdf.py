"""The reader of pdf files."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO

from tandem.plugins.office.marks import BOXES, DOWN, LEVEL, UP, write_shifted
from tandem.retrieval.documents import Document, with_metadata
from tandem.retrieval.readers import ENCRYPTED, LIGATURES, Unreadable, brief, listed, parsing

if TYPE_CHECKING:
    from pypdf import PageObject, PdfReader
    from pypdf.generic import DictionaryObject


OCR = "`ocrmypdf FILE FILE`"
PRINT = "print it to pdf again"
_BROKEN = re.compile(r"([^\W\d_]*[^\W\d_A-Z])-\n([^\W\d_A-Z][^\W\d_]*)")
"""A word that a line ends within."""
_SOFT_BREAK = re.compile("\u00ad\n?")
MAX_NAMED = 10
"""Pages without text that a sentence names."""
_SHOWN = (b"Tj", b"TJ", b"'", b'"')
"""Operators that show text."""
_SMALL = 0.9
"""Raised text is at most so large, as a share of the text before it, unless the file says that it is raised."""
_RAISED, _LOWERED = (0.1, 0.8), (-0.5, -0.05)
"""So much it is higher or lower."""
_BAD_OPERANDS = (ArithmeticError, AttributeError, IndexError, TypeError, ValueError)
_MARK_SIZE = 0.001
"""The size of marks among the text, so that they take no room between its words."""
_PUSHBUTTON, _RADIO = 1 << 16, 1 << 15
"""Flags of buttons."""


def read_pdf(file: BinaryIO, source: str, problems: list[str]) -> Iterator[Document]:
    """A pdf file: one document a page that has text; `page` counts from 1."""
    reader = _open_pdf(file)
    with parsing("pdf", PRINT):
        num_pages = len(reader.pages)
    title = _title(reader)
    num_read = 0
    scanned: list[int] = []
    forms: dict[int, Any] = {}
    for number in range(1, num_pages + 1):
        try:
            page = reader.pages[number - 1]
            text = "\n".join([_whole_words(_text(page, forms)), *filter(None, _filled_in(page))]).strip("\n")
            if not text.strip() and _has_image(page):
                scanned.append(number)
        except MemoryError:
            raise
        except Exception as error:  # pypdf raises many kinds on damaged pages; the others are still good
            problems.append(
                f"{source} page {number} was left out: it is damaged ({brief(error)}); print it to pdf again."
            )
            continue
        num_read += bool(text.strip())
        yield with_metadata(text, title, source=source, page=number)
    if scanned and num_read == 0:
        raise Unreadable(f"none of its pages has text, they are images; add a text layer first, as by {OCR}")
    if scanned:
        shown = listed(list(map(str, scanned)), MAX_NAMED)
        pages, are = ("page", "it is an image") if len(scanned) == 1 else ("pages", "they are images")
        were = "was" if len(scanned) == 1 else "were"
        problems.append(f"{source} {pages} {shown} {were} left out: {are}; add a text layer, as by {OCR}.")


def _open_pdf(file: BinaryIO) -> PdfReader:
    """The pdf, decrypted if its password is empty; Unreadable if it is locked or damaged."""
    from pypdf import PdfReader
    from pypdf.errors import DependencyError

    logging.getLogger("pypdf").addHandler(logging.NullHandler())  # its warnings would go to stderr
    with parsing("pdf", PRINT):
        try:
            reader = PdfReader(file)
            is_locked = reader.is_encrypted and not reader.decrypt("")
        except DependencyError:
            is_locked = True
        if is_locked:
            raise Unreadable(ENCRYPTED)
    return reader


def _title(reader: PdfReader) -> dict[str, object]:
    with suppress(Exception):  # what is damaged there matters little
        if reader.metadata and (title := " ".join(str(reader.metadata.title or "").split())):
            return {"title": title}
    return {}


def _text(page: PageObject, forms: dict[int, Any]) -> str:
    """A page's text, with what is raised or lowered written as such; forms: those known, by ids, and marked."""
    from pypdf.generic import ContentStream, NameObject

    stream = ContentStream(page["/Contents"].get_object() if "/Contents" in page else None, page.pdf, "bytes")
    with suppress(*_BAD_OPERANDS):
        if _has_text(stream.get_data()):  # else it takes no time over drawings
            stream.operations = list(_marked(stream.operations))
            page[NameObject("/Contents")] = stream
    _mark_forms(page, forms)
    return write_shifted(page.extract_text(visitor_text=lambda *_: None) + LEVEL)  # the visitor: as they are


def _has_text(data: bytes) -> bool:
    return any(operator in data for operator in _SHOWN)


def _mark_forms(page: PageObject, forms: dict[int, Any]) -> None:
    """Puts marked ones in the place of the forms that a page draws, and of those within them."""
    from pypdf.generic import ContentStream, DictionaryObject

    nothing = DictionaryObject()
    left = [page.get_inherited("/Resources", nothing)]
    while left:
        things = left.pop().get_object().get("/XObject", nothing).get_object()
        for name, reference in list(things.items()):
            form = reference.get_object()
            if form.get("/Subtype") != "/Form" or isinstance(form, ContentStream):
                continue
            if id(form) not in forms:
                forms[id(form)] = form, form
                left.append(form.get("/Resources", nothing))
                with suppress(*_BAD_OPERANDS):
                    if _has_text(form.get_data()):
                        marked = ContentStream(form, page.pdf, "bytes")
                        marked.operations = list(_marked(marked.operations))
                        marked.update(form)
                        forms[id(form)] = form, marked
            things[name] = forms[id(form)][1]


def _marked(operations: Iterable[tuple[Any, bytes]]) -> Iterator[tuple[Any, bytes]]:
    """The operations of a page or form, and marks before text that is higher or lower than the text of its line."""
    from pypdf import Transformation

    place, line = Transformation(), Transformation()
    font: list[Any] = []
    leading, rise = 0.0, 0.0
    saved: list[tuple[Any, ...]] = []
    base, shift = (0.0, 0.0), LEVEL
    for operands, operator in operations:
        match operator, operands:
            case b"q", _:
                saved.append((place, font, leading, rise))
            case b"Q", _ if saved:
                place, font, leading, rise = saved.pop()
            case b"cm", [_, _, _, _, _, _]:
                place = Transformation(operands).transform(place)
            case b"BT", _:
                line = Transformation()
            case b"Tm", [_, _, _, _, _, _]:
                line = Transformation(operands)
            case ((b"Td" | b"TD"), [x, y]):
                line = Transformation((1, 0, 0, 1, x, y)).transform(line)
                leading = -y if operator == b"TD" else leading
            case b"TL", [leading]:
                pass
            case ((b"T*" | b"'" | b'"'), _):
                line = Transformation((1, 0, 0, 1, 0, -leading)).transform(line)
            case b"Tf", [_, _]:
                font = operands
            case b"Ts", [rise]:
                pass
        if operator in _SHOWN and font:
            ctm = line.transform(place).ctm
            height, size = ctm[5] + rise * ctm[3], font[1] * ctm[3]
            before, shift = shift, _shift(height, size, base, bool(rise))
            if shift == LEVEL:
                base = (height, size)
            if shift != before:
                yield from _mark(font, (LEVEL if before != LEVEL else "") + (shift if shift != LEVEL else ""))
        yield operands, operator
    if shift != LEVEL:
        yield from _mark(font, LEVEL)


def _mark(font: list[Any], marks: str) -> Iterator[tuple[Any, bytes]]:
    from pypdf.generic import TextStringObject

    yield [font[0], _MARK_SIZE], b"Tf"
    yield [TextStringObject(marks)], b"Tj"
    yield font, b"Tf"


def _shift(height: float, size: float, base: tuple[float, float], is_risen: bool) -> str:
    """The mark of text at a height, after text of which the same is known: its height and size."""
    higher = (height - base[0]) / base[1] if base[1] else 0.0
    if is_risen or 0 < size / (base[1] or 1.0) <= _SMALL:
        if _RAISED[0] < higher < _RAISED[1]:
            return UP
        if _LOWERED[0] < higher < _LOWERED[1]:
            return DOWN
    return LEVEL


def _whole_words(text: str) -> str:
    """A page's text, its words put together where a line ended within, and ligatures taken apart.

    A word that the page also has with its hyphen keeps it.
    """
    text = _SOFT_BREAK.sub("", text.translate(LIGATURES))
    return _BROKEN.sub(
        lambda word: f"{word[1]}-{word[2]}" if f"{word[1]}-{word[2]}" in text else word[1] + word[2], text
    )


def _has_image(page: PageObject) -> bool:
    things = page.get_inherited("/Resources", {}).get("/XObject")
    return bool(things and any(things.get_object().values()))


def _filled_in(page: PageObject) -> Iterator[str]:
    """The text that a viewer shows on a page besides its own: notes typed on it, and form fields by their names, with
    their values and ticks."""
    for reference in page.annotations or ():
        annotation = reference.get_object()
        kind = annotation.get("/Subtype")
        if kind == "/FreeText":
            yield str(annotation.get("/Contents", ""))
        elif kind == "/Widget":
            field = annotation if "/T" in annotation else annotation.get("/Parent", annotation).get_object()
            value = annotation.get("/V", field.get("/V"))
            name = field.get("/TU", field.get("/T", ""))
            kind = annotation.get("/FT", field.get("/FT"))
            if kind == "/Btn":
                yield _button(annotation, name, annotation.get("/Ff", field.get("/Ff", 0)), value)
            elif kind in ("/Tx", "/Ch") and value is not None:
                values = value if isinstance(value, list) else [value]
                yield f"{name}: {', '.join(map(str, values))}"


def _button(annotation: DictionaryObject, name: str, flags: int, value: object) -> str:
    """A box or one of several choices, ticked or not; "" for a button that is pressed."""
    if flags & _PUSHBUTTON:
        return ""
    looks = annotation.get("/AP", {}).get("/N", {})
    on = next((look for look in looks if look != "/Off"), "")
    state = annotation.get("/AS", value)
    is_ticked = state not in (None, "/Off") and (not on or state == on)
    choice = f": {on[1:]}" if flags & _RADIO else ""
    return f"{BOXES[is_ticked]}{name}{choice}"
