"""The reader of pdf files."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO

from tandem.retrieval.documents import Document, with_metadata
from tandem.retrieval.readers import ENCRYPTED, LIGATURES, Unreadable, brief, listed, parsing

if TYPE_CHECKING:
    from pypdf import PageObject, PdfReader


OCR = "`ocrmypdf FILE FILE`"
PRINT = "print it to pdf again"
_BROKEN = re.compile(r"([^\W\d_]*[^\W\d_A-Z])-\n([^\W\d_A-Z][^\W\d_]*)")
"""A word that a line ends within."""
_SOFT_BREAK = re.compile("\u00ad\n?")
MAX_NAMED = 10
"""Pages without text that a sentence names."""


def read_pdf(file: BinaryIO, source: str, problems: list[str]) -> Iterator[Document]:
    """A pdf file: one document a page that has text; `page` counts from 1."""
    reader = _open_pdf(file)
    with parsing("pdf", PRINT):
        num_pages = len(reader.pages)
    title = _title(reader)
    num_read = 0
    scanned: list[int] = []
    for number in range(1, num_pages + 1):
        try:
            page = reader.pages[number - 1]
            text = "\n".join([_whole_words(page.extract_text()), *_filled_in(page)]).strip("\n")
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
    """The text that a viewer shows on a page besides its own: values of form fields, behind their names, and notes
    typed on it."""
    for reference in page.annotations or ():
        annotation = reference.get_object()
        kind = annotation.get("/Subtype")
        if kind == "/FreeText":
            yield str(annotation.get("/Contents", ""))
        elif kind == "/Widget":
            field = annotation if "/T" in annotation else annotation.get("/Parent", annotation).get_object()
            value = annotation.get("/V", field.get("/V"))
            if annotation.get("/FT", field.get("/FT")) not in ("/Tx", "/Ch") or value is None:
                continue
            values = value if isinstance(value, list) else [value]
            yield f"{field.get('/TU', field.get('/T', ''))}: {', '.join(map(str, values))}"
