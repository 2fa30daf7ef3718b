"""Files as people have them, made by the libraries that write them, for test_real_files.py."""

from __future__ import annotations

import datetime
import struct
import zipfile
from collections.abc import Callable
from email.message import EmailMessage
from email.policy import SMTP
from io import BytesIO
from typing import Any

HEAD = {
    "From": "Ida Berg <ida@example.org>",
    "To": "ole@example.org",
    "Date": "Mon, 06 May 2024 10:30:00 +0200",
}
"""Fields of every message."""


def saved(write: Callable[[BytesIO], Any]) -> bytes:
    """What a function writes into a file."""
    file = BytesIO()
    write(file)
    return file.getvalue()


def zip_bytes(members: dict[str, bytes], **options: Any) -> bytes:
    """A zip archive."""

    def write(file: BytesIO) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, **options) as archive:
            for name, data in members.items():
                archive.writestr(name, data)

    return saved(write)


def docx_bytes(build: Callable[[Any], None]) -> bytes:
    """A document of Word."""
    import docx

    document = docx.Document()
    build(document)
    return saved(document.save)


def pptx_bytes(build: Callable[[Any], None]) -> bytes:
    """A presentation of PowerPoint."""
    import pptx

    presentation = pptx.Presentation()
    build(presentation)
    return saved(presentation.save)


def xlsx_bytes(**sheets: list[list[Any]]) -> bytes:
    """A workbook of Excel; a cell may be (value, number format)."""
    import openpyxl

    book = openpyxl.Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for y, row in enumerate(rows, start=1):
            for x, value in enumerate(row, start=1):
                cell = sheet.cell(y, x)
                if isinstance(value, tuple):
                    cell.value, cell.number_format = value
                else:
                    cell.value = value
    return saved(book.save)


def epub_bytes(title: str, authors: list[str], chapters: list[str]) -> bytes:
    """A book."""
    from ebooklib import epub

    book = epub.EpubBook()
    book.set_title(title)
    for author in authors:
        book.add_author(author)
    pages = [epub.EpubHtml(title=f"c{n}", file_name=f"c {n}.xhtml") for n in range(len(chapters))]
    for page, text in zip(pages, chapters, strict=True):
        page.content = text
        book.add_item(page)
    book.spine = pages
    book.add_item(epub.EpubNcx())
    return saved(lambda file: epub.write_epub(file, book))


def mail_bytes(subject: str, body: str, **fields: str) -> EmailMessage:
    """A message with the usual fields."""
    message = EmailMessage(policy=SMTP)
    for name, value in (HEAD | {"Subject": subject} | fields).items():
        message[name] = value
    message.set_content(body)
    return message


def msg_bytes(texts: dict[str, str], attachments: dict[str, bytes]) -> bytes:
    """A message of Outlook: property number -> text. [MS-OXMSG] in a container of [MS-CFB]."""
    sent = int((datetime.datetime(2024, 5, 6, 8, 30) - datetime.datetime(1601, 1, 1)).total_seconds()) * 10**7
    entry = struct.pack("<HHIQ", 0x0040, 0x0039, 6, sent)
    tree: dict[str, Any] = {"__properties_version1.0": bytes(32) + entry}
    tree |= {f"__substg1.0_{number}001F": text.encode("utf-16-le") for number, text in texts.items()}
    for number, (name, data) in enumerate(attachments.items()):
        tree[f"__attach_version1.0_#{number:08X}"] = {
            "__properties_version1.0": bytes(8),
            "__substg1.0_3707001F": name.encode("utf-16-le"),
            "__substg1.0_37010102": data,
        }
    return cfb_bytes(tree)


def cfb_bytes(tree: dict[str, Any]) -> bytes:
    """A compound file of 512-byte sectors; streams that are shorter than 4,096 bytes lie in the small sectors."""
    entries: list[list[Any]] = [
        ["Root Entry", 5, -1, -1, 0, 0]
    ]  # name, type, sibling, child, first sector, size
    fat: list[int] = []
    sectors, small, small_fat = bytearray(), bytearray(), []

    def chain(table: list[int], space: bytearray, data: bytes, size: int) -> int:
        first, count = len(table), -(-len(data) // size)
        table += [*range(first + 1, first + count), -2] if count else []
        space += data.ljust(count * size, b"\0")
        return first if count else -2

    def add(folder: dict[str, Any]) -> int:
        before = -1
        for name, value in folder.items():
            own = len(entries)
            entries.append(
                [name, 1 if isinstance(folder, dict) and isinstance(value, dict) else 2, before, -1, 0, 0]
            )
            before = own
            if isinstance(value, dict):
                entries[own][3] = add(value)
            else:
                is_small = len(value) < 4096
                table, space, size = (small_fat, small, 64) if is_small else (fat, sectors, 512)
                entries[own][4:] = [chain(table, space, value, size), len(value)]
        return before

    entries[0][3] = add(tree)
    entries[0][4:] = [chain(fat, sectors, bytes(small), 512), len(small)]
    small_start = chain(fat, sectors, struct.pack(f"<{len(small_fat)}i", *small_fat).ljust(512, b"\xff"), 512)
    packed = b"".join(
        f"{name}\0".encode("utf-16-le").ljust(64, b"\0")
        + struct.pack("<HBB3i36xiQ", 2 * len(name) + 2, kind, 1, sibling, -1, child, first, size)
        for name, kind, sibling, child, first, size in entries
    )
    start = chain(fat, sectors, packed, 512)
    fat_at = len(fat)
    fat += [-3] * (len(fat) // 127 + 1)
    table = struct.pack(f"<{len(fat)}i", *fat)
    table = table.ljust(-(-len(table) // 512) * 512, b"\xff")
    where = [*range(fat_at, len(fat))]
    head = struct.pack(
        "<8s16x5H6x5I",
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
        0x3E,
        3,
        0xFFFE,
        9,
        6,
        0,
        len(where),
        start,
        0,
        4096,
    )
    head += struct.pack("<iIiI109i", small_start, 1, -2, 0, *where, *([-1] * (109 - len(where))))
    return head + bytes(sectors) + table
