"""Readers of what people write in offices: documents, slides, sheets and books.

Formats of Microsoft are taken apart by the converters of markitdown and by what these stand on; values of cells are
read as they are shown. Those of OpenDocument and EPUB are archives of XML and HTML.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from datetime import date, datetime, time
from io import BytesIO
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import unquote
from xml.etree import ElementTree
from zipfile import ZipFile

from tandem.plugins.office.html import parse_html
from tandem.retrieval.documents import Document, with_metadata
from tandem.retrieval.readers import ENCRYPTED, Unreadable, as_table, unzipped

if TYPE_CHECKING:
    from openpyxl.cell.cell import Cell

_STYLES = "comment-reference => sup\np[style-name='Title'] => h1:fresh"
"""Of a docx: its comments are listed at its end, its title is a heading."""
_BACK_LINK = re.compile(r'<a href="#(?:footnote|endnote|comment)-ref-[^"]*">↑</a>')
_SLIDE = re.compile(r"<!-- Slide number: (\d+) -->\n?")
_PICTURE = re.compile(r"!\[([^\]]*)\]\([^)]*\)")
_NO_PICTURE = re.compile(r"(?:Picture|Image|Grafik|Bild|Content Placeholder)? ?\d*", re.IGNORECASE)
"""Names of pictures that nobody gave."""
_RULE = re.compile(r"\|(?: ?:?-+:? ?\|)+")
_ENTITY = re.compile(rb"<!ENTITY", re.IGNORECASE)
MAX_REPEATED = 1000
"""So often a cell of a sheet may say that it is repeated."""


def read_docx(file: BinaryIO, source: str, problems: list[str]) -> Iterator[Document]:
    """A docx file: one document; headers come first, notes, comments and footers last."""
    with unzipped(file, "docx") as archive:
        import mammoth
        from markitdown.converter_utils.docx.pre_process import pre_process_docx

        def no_image(image: Any) -> dict[str, str]:
            return {}

        body = mammoth.convert_to_html(
            pre_process_docx(file), style_map=_STYLES, convert_image=mammoth.images.img_element(no_image)
        ).value
        texts = [
            *_margins(archive, "header"),
            parse_html(_BACK_LINK.sub("", body))[0],
            *_margins(archive, "footer"),
        ]
    yield _whole(texts, source)


def _margins(archive: ZipFile, kind: str) -> list[str]:
    """What is written above or below the pages of a docx, each text once."""
    parts = sorted(name for name in archive.namelist() if re.fullmatch(rf"word/{kind}\d*\.xml", name))
    texts: dict[str, None] = {}
    for part in parts:
        paragraphs = [node for node in _xml(archive, part).iter() if _tag(node) == "p"]
        lines = ["".join((_tag(node) == "t" and node.text) or "" for node in p.iter()) for p in paragraphs]
        texts.setdefault("\n".join(line for line in lines if line.strip()))
    return list(texts)


def read_pptx(file: BinaryIO, source: str, problems: list[str]) -> Iterator[Document]:
    """A pptx file: one document a slide that has text; `page` is its number, counted from 1."""
    with unzipped(file, "pptx"):
        from markitdown import StreamInfo
        from markitdown.converters import PptxConverter

        plain = {"escape_asterisks": False, "escape_underscores": False, "escape_misc": False}
        text = PptxConverter().convert(file, StreamInfo(extension=".pptx"), **plain).markdown
    _, *slides = _SLIDE.split(text)
    for number, slide in zip(slides[::2], slides[1::2], strict=True):
        lines = [_slide_line(line) for line in slide.replace("\v", "\n").splitlines()]
        text = re.sub(r"\n{3,}", "\n\n", "\n".join(line for line in lines if line is not None)).strip()
        yield with_metadata(text, {}, source=source, page=int(number))


def _slide_line(line: str) -> str | None:
    """A line of a slide as other readers write it: of a picture its description, of a table tabs between cells."""
    line = _PICTURE.sub(lambda picture: "" if _NO_PICTURE.fullmatch(picture[1]) else picture[1], line)
    if _RULE.fullmatch(line):
        return None
    is_row = line.startswith("| ") and line.endswith(" |")
    return "\t".join(cell.strip() for cell in line[2:-2].split(" | ")) if is_row else line.rstrip()


def read_xlsx(file: BinaryIO, source: str, problems: list[str]) -> Iterator[Document]:
    """An xlsx file: one document a sheet that is shown and has text, under its name as a heading."""
    with unzipped(file, "xlsx") as archive:
        import openpyxl

        book = openpyxl.load_workbook(file, data_only=True, keep_links=False)
        has_formulas = any(
            b"<f" in archive.read(name) for name in archive.namelist() if name.startswith("xl/worksheets/")
        )
        formulas = openpyxl.load_workbook(file, keep_links=False) if has_formulas else book
        num_open = 0
        hidden = [sheet.title for sheet in book.worksheets if sheet.sheet_state != "visible"]
        for sheet in book.worksheets:
            if sheet.title in hidden:
                continue
            rows, comments = [], []
            for row, written in zip(sheet.iter_rows(), formulas[sheet.title].iter_rows(), strict=True):
                cells = [_shown(cell) for cell in row]
                for place, cell in enumerate(written):
                    if not cells[place] and cell.data_type == "f":
                        cells[place] = str(getattr(cell.value, "text", cell.value))
                        num_open += 1
                    if cell.comment:
                        comments.append(f"{cell.coordinate}: {' '.join(cell.comment.text.split())}")
                rows.append(cells)
            if table := as_table(rows):
                text = "\n".join([f"# {sheet.title}", table, *comments])
                yield with_metadata(text, {}, source=source, sheet=sheet.title)
    if num_open:
        are = (
            "formula has no value in the file and was read as it is"
            if num_open == 1
            else ("formulas have no value in the file and were read as they are")
        )
        problems.append(f"{source}: {num_open} {are}; open it and save it once.")
    if hidden:
        were, shown = "sheet was" if len(hidden) == 1 else "sheets were", ", ".join(hidden[:3])
        problems.append(
            f"{source}: {len(hidden)} hidden {were} left out ({shown}); show what should be read."
        )


def _shown(cell: Cell) -> str:
    """The value of a cell about as its number format shows it: dates, percent, fixed decimals, leading zeros."""
    value = cell.value
    if value is None or isinstance(value, bool):
        return "" if value is None else str(value).upper()
    if isinstance(value, datetime) and value.time() == time():
        value = value.date()
    if isinstance(value, date | time):
        return value.isoformat().replace("T", " ")
    if not isinstance(value, int | float):
        return str(value)
    code = re.sub(r'"[^"]*"|\[[^\]]*\]|\\.|_.', "", cell.number_format).partition(";")[0].strip()
    if re.fullmatch(r"0{2,}", code):
        return f"{value:0{len(code)}.0f}"
    decimals = re.search(r"\.(0+)", code)
    if "%" in code:
        return f"{100 * value:.{len(decimals[1]) if decimals else 0}f}%"
    if decimals and "E" not in code:
        return f"{value:.{len(decimals[1])}f}"
    return str(value) if isinstance(value, int) else f"{value:.15g}"


# ---- OpenDocument --------------------------------------------------------------------------------------------


def read_odf(file: BinaryIO, source: str, problems: list[str]) -> Iterator[Document]:
    """A file of LibreOffice: an odt is one document, an ods one a sheet (`sheet`), an odp one a slide (`page`)."""
    with unzipped(file, "OpenDocument") as archive:
        if b"encryption-data" in archive.read("META-INF/manifest.xml"):
            raise Unreadable(ENCRYPTED)
        body = next(node for node in _xml(archive, "content.xml") if _tag(node) == "body")[0]
        margins = [node for node in _xml(archive, "styles.xml").iter() if _tag(node) in ("header", "footer")]
    if _tag(body) == "text":
        texts = dict.fromkeys("\n".join(_blocks(node)) for node in margins if _tag(node) == "header")
        texts |= {"\n\n".join(_blocks(body)): None}
        texts |= dict.fromkeys("\n".join(_blocks(node)) for node in margins if _tag(node) == "footer")
        yield _whole(texts, source)
        return
    parts = [node for node in body if _tag(node) in ("table", "page")]
    for number, part in enumerate(parts, start=1):
        is_sheet, name = _tag(part) == "table", _attribute(part, "name")
        text = as_table(_rows(part)) if is_sheet else "\n".join(_blocks(part))
        if text.strip():
            own = {"sheet": name} if is_sheet else {"page": number}
            yield with_metadata(f"# {name}\n{text}" if is_sheet else text, {}, source=source, **own)


def _blocks(node: ElementTree.Element) -> Iterator[str]:
    """The paragraphs, headings, items and tables within an element, each as a text."""
    for child in node:
        match _tag(child):
            case "h":
                level = _attribute(child, "outline-level")
                yield f"{'#' * min(int(level or 1), 6)} {_inline(child)}"
            case "p":
                if _inline(child).strip():
                    yield _inline(child)
                yield from _blocks_within(child)
            case "list":
                yield "\n".join(f"- {line}" if line[:2] != "- " else line for line in _blocks(child))
            case "table":
                yield as_table(_rows(child))
            case "notes":
                yield "\n".join(["Notes:", *_blocks(child)]) if any(_blocks(child)) else ""
            case "tracked-changes" | "forms" | "shapes":
                pass
            case _:
                yield from _blocks(child)


def _blocks_within(paragraph: ElementTree.Element) -> Iterator[str]:
    for child in paragraph:
        if _tag(child) in ("frame", "custom-shape", "g"):
            yield from _blocks(child)
        elif _tag(child) in ("span", "a"):
            yield from _blocks_within(child)


def _inline(node: ElementTree.Element) -> str:
    """The text of a paragraph; its notes and comments in brackets where they are called."""
    text = node.text or ""
    for child in node:
        match _tag(child):
            case "s":
                text += " " * min(int(_attribute(child, "c") or 1), MAX_REPEATED)
            case "tab" | "line-break":
                text += " "
            case "note" | "annotation":
                text += f" [{' '.join(_blocks(child))}]"
            case "frame" | "custom-shape" | "g":
                pass
            case _:
                text += _inline(child)
        text += child.tail or ""
    return text


def _rows(table: ElementTree.Element) -> Iterator[list[str]]:
    for child in table:
        if _tag(child) in ("table-rows", "table-header-rows", "table-row-group"):
            yield from _rows(child)
        elif _tag(child) == "table-row":
            yield [text for cell in child for text in _cell(cell)]


def _cell(cell: ElementTree.Element) -> list[str]:
    if _tag(cell) not in ("table-cell", "covered-table-cell"):
        return []
    text = " ".join(_blocks(cell))
    return [text] * min(int(_attribute(cell, "number-columns-repeated") or 1), MAX_REPEATED)


# ---- EPUB ----------------------------------------------------------------------------------------------------


def read_epub(file: BinaryIO, source: str, problems: list[str]) -> Iterator[Document]:
    """An epub file: one document a chapter that has text, in the order of the book."""
    with unzipped(file, "epub") as archive:
        names = set(archive.namelist())
        root = next(
            node for node in _xml(archive, "META-INF/container.xml").iter() if _tag(node) == "rootfile"
        )
        path = root.attrib["full-path"]
        package = list(_xml(archive, path).iter())
        metadata: dict[str, Any] = {
            name: [text for node in package if _tag(node) == tag and (text := (node.text or "").strip())]
            for name, tag in (("title", "title"), ("authors", "creator"))
        }
        metadata = {
            name: values[0] if name == "title" else values for name, values in metadata.items() if values
        }
        items = {
            node.attrib.get("id"): node.attrib.get("href", "") for node in package if _tag(node) == "item"
        }
        spine = [items.get(node.attrib.get("idref"), "") for node in package if _tag(node) == "itemref"]
        chapters = [
            posixpath.normpath(posixpath.join(posixpath.dirname(path), unquote(href))) for href in spine
        ]
        locks = archive.read("META-INF/encryption.xml") if "META-INF/encryption.xml" in names else b""
        for number, chapter in enumerate((name for name in chapters if name in names), start=1):
            if chapter.encode() in locks:
                raise Unreadable("it is encrypted by its seller; index another copy")
            text, _ = parse_html(archive.read(chapter).decode("utf-8-sig", "replace"))
            yield with_metadata(text, metadata, source=source, chapter=number)


# ---- XML -----------------------------------------------------------------------------------------------------


def _xml(archive: ZipFile, name: str) -> ElementTree.Element:
    """The root of a part, which may not declare entities: they can grow without bound, and lead out of the file."""
    data = archive.read(name)
    if _ENTITY.search(data.replace(b"\0", b"")):
        raise Unreadable("it declares XML entities, as no program for offices does; save it again")
    return ElementTree.parse(BytesIO(data)).getroot()


def _tag(node: ElementTree.Element) -> str:
    return node.tag.rpartition("}")[2]


def _attribute(node: ElementTree.Element, name: str) -> str:
    return next((value for key, value in node.attrib.items() if key.rpartition("}")[2] == name), "")


def _whole(texts: Iterable[str], source: str) -> Document:
    return with_metadata("\n\n".join(filter(str.strip, texts)), {}, source=source)
