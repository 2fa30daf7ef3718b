"""Readers of what people write in offices: documents, slides, sheets and books.

Formats of Microsoft are taken apart by the converters of markitdown and by what these stand on; values of cells are
read as they are shown. Those of OpenDocument and EPUB are archives of XML and HTML.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from io import BytesIO
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import unquote
from xml.etree import ElementTree

from tandem.plugins.office.html import decode_html, parse_html
from tandem.plugins.office.marks import DOWN, LEVEL, UP, write_shifted
from tandem.plugins.office.xml import DROPPED, attribute, describe_dropped, tag, xml
from tandem.retrieval.documents import Document, with_metadata
from tandem.retrieval.readers import ENCRYPTED, Unreadable, as_table, unzipped

if TYPE_CHECKING:
    from openpyxl.cell.cell import Cell

_SLIDE = re.compile(r"<!-- Slide number: (\d+) -->\n?")
_PICTURE = re.compile(r"!\[([^\]]*)\]\([^)]*\)")
_NO_PICTURE = re.compile(r"(?:Picture|Image|Grafik|Bild|Content Placeholder)? ?\d*", re.IGNORECASE)
"""Names of pictures that nobody gave."""
_LOCAL_FORMATS = ("General", "mm-dd-yy", "m/d/yy h:mm")
"""Formats that show a number or a date as the machine's settings say."""
_DOT = re.compile(r'"[^"]*"|\\.|\.(?!0)')
_RULE = re.compile(r"\|(?: ?:?-+:? ?\|)+")
MAX_REPEATED = 1000
"""So often a cell of a sheet may say that it is repeated."""
MAX_STYLES = 20
"""Styles that are based on each other."""


def read_pptx(file: BinaryIO, source: str, problems: list[str]) -> Iterator[Document]:
    """A pptx file: one document a slide that has text; `page` is its number, counted from 1."""
    with unzipped(file, "pptx"):
        from markitdown import StreamInfo
        from markitdown.converters import PptxConverter

        plain = {"escape_asterisks": False, "escape_underscores": False, "escape_misc": False}
        dropped: Counter[str] = Counter()
        marked = _with_shifted_runs(file, dropped)
        text = PptxConverter().convert(marked, StreamInfo(extension=".pptx"), **plain).markdown
    problems += describe_dropped(source, dropped)
    _, *slides = _SLIDE.split(write_shifted(text))
    for number, slide in zip(slides[::2], slides[1::2], strict=True):
        lines = [_slide_line(line) for line in slide.replace("\v", "\n").splitlines()]
        text = re.sub(r"\n{3,}", "\n\n", "\n".join(line for line in lines if line is not None)).strip()
        yield with_metadata(text, {}, source=source, page=int(number))


def _with_shifted_runs(file: BinaryIO, dropped: Counter[str]) -> BinaryIO:
    """The same slides with marks around what is raised or lowered; dropped: counts what has no text in them."""
    import pptx

    deck = pptx.Presentation(file)
    num_shifted = 0
    for slide in deck.slides:
        for part in [slide, slide.notes_slide] if slide.has_notes_slide else [slide]:
            dropped.update(DROPPED[tag(node)] for node in part.element.iter("{*}relIds", "{*}oleObj"))
            for node in part.element.iter("{*}t"):
                properties = node.getparent().find("{*}rPr")
                baseline = "" if properties is None else properties.get("baseline", "")
                if node.text and baseline.rstrip("%").strip("-0."):
                    node.text = (DOWN if baseline[0] == "-" else UP) + node.text + LEVEL
                    num_shifted += 1
    file.seek(0)
    if num_shifted == 0:
        return file
    marked = BytesIO()
    deck.save(marked)
    marked.seek(0)
    return marked


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
            texts: dict[tuple[int, int], str] = {}
            comments = []
            for place, cell in sorted(sheet._cells.items()):  # the others hold nothing
                text = _shown(cell)
                written = formulas[sheet.title]._cells.get(place, cell)
                if not text and written.data_type == "f":
                    text = str(getattr(written.value, "text", written.value))
                    num_open += 1
                if text.strip():
                    texts[place] = text
                if written.comment:
                    comments.append(f"{cell.coordinate}: {' '.join(written.comment.text.split())}")
            columns = sorted({column for _, column in texts})
            places = dict.fromkeys(row for row, _ in texts)
            rows = ([texts.get((row, column), "") for column in columns] for row in places)
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
    """The value of a cell as its number format shows it, or as it is where that is left to the machine's settings."""
    from xlfmt import format_value

    value, code = cell.value, cell.number_format
    if isinstance(value, datetime | time | timedelta) and "s" not in _DOT.sub("", code).lower():
        value = _in_minutes(value)  # which the library rounds
    if isinstance(value, timedelta):
        value /= timedelta(days=1)
    if value is None or isinstance(value, bool) or code in _LOCAL_FORMATS:
        return _plain(value)
    if isinstance(value, date):  # the library takes a bare dot for one of decimals
        code = _DOT.sub(lambda match: match[0] if match[0] != "." else r"\.", code)
    with suppress(ArithmeticError, TypeError, ValueError):  # of odd formats
        text = str(format_value(value, code))
        if text.strip("# "):
            return text
    return _plain(value)


def _in_minutes(value: datetime | time | timedelta) -> datetime | time | timedelta:
    """A time without its seconds, as sheets show it."""
    if isinstance(value, timedelta):
        return value - value % timedelta(minutes=1)
    return value.replace(second=0, microsecond=0)


def _plain(value: object) -> str:
    if value is None or isinstance(value, bool):
        return "" if value is None else str(value).upper()
    if isinstance(value, datetime) and value.time() == time():
        value = value.date()
    if isinstance(value, date | time):
        return value.isoformat().replace("T", " ")
    return f"{value:.15g}" if isinstance(value, float) else str(value)


# ---- OpenDocument --------------------------------------------------------------------------------------------


def read_odf(file: BinaryIO, source: str, problems: list[str]) -> Iterator[Document]:
    """A file of LibreOffice: an odt is one document, an ods one a sheet (`sheet`), an odp one a slide (`page`)."""
    with unzipped(file, "OpenDocument") as archive:
        if b"encryption-data" in archive.read("META-INF/manifest.xml"):
            raise Unreadable(ENCRYPTED)
        content, styles = xml(archive, "content.xml"), xml(archive, "styles.xml")
        _mark_shifted(content, styles)
        body = next(node for node in content if tag(node) == "body")[0]
        margins = [node for node in styles.iter() if tag(node) in ("header", "footer")]
    if tag(body) == "text":
        texts = dict.fromkeys("\n".join(_blocks(node)) for node in margins if tag(node) == "header")
        texts |= {"\n\n".join(_blocks(body)): None}
        texts |= dict.fromkeys("\n".join(_blocks(node)) for node in margins if tag(node) == "footer")
        yield _whole(map(write_shifted, texts), source)
        return
    parts = [node for node in body if tag(node) in ("table", "page")]
    for number, part in enumerate(parts, start=1):
        is_sheet, name = tag(part) == "table", attribute(part, "name")
        text = write_shifted(as_table(_rows(part)) if is_sheet else "\n".join(_blocks(part)))
        if text.strip():
            own = {"sheet": name} if is_sheet else {"page": number}
            yield with_metadata(f"# {name}\n{text}" if is_sheet else text, {}, source=source, **own)


def _mark_shifted(*roots: ElementTree.Element) -> None:
    """Puts marks around what is raised or lowered by its style."""
    nodes = [node for root in roots for node in root.iter()]
    styles = {attribute(node, "name"): node for node in nodes if tag(node) == "style"}
    for node in nodes:
        if tag(node) == "span" and (mark := _shift(styles, attribute(node, "style-name"))):
            node.text, node.tail = mark + (node.text or ""), LEVEL + (node.tail or "")


def _shift(styles: dict[str, ElementTree.Element], name: str) -> str:
    """The mark of text of a style, by itself or by the styles on which it is based."""
    for _ in range(MAX_STYLES):
        if (style := styles.get(name)) is None:
            break
        for properties in style:
            if position := attribute(properties, "text-position").partition(" ")[0]:
                is_low = position.startswith(("sub", "-"))
                return "" if not position.strip("-0%") else DOWN if is_low else UP
        name = attribute(style, "parent-style-name")
    return ""


def _blocks(node: ElementTree.Element) -> Iterator[str]:
    """The paragraphs, headings, items and tables within an element, each as a text."""
    for child in node:
        match tag(child):
            case "h":
                level = attribute(child, "outline-level")
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
        if tag(child) in ("frame", "custom-shape", "g"):
            yield from _blocks(child)
        elif tag(child) in ("span", "a"):
            yield from _blocks_within(child)


def _inline(node: ElementTree.Element) -> str:
    """The text of a paragraph; its notes and comments in brackets where they are called."""
    text = node.text or ""
    for child in node:
        match tag(child):
            case "s":
                text += " " * min(int(attribute(child, "c") or 1), MAX_REPEATED)
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
        if tag(child) in ("table-rows", "table-header-rows", "table-row-group"):
            yield from _rows(child)
        elif tag(child) == "table-row":
            yield [text for cell in child for text in _cell(cell)]


def _cell(cell: ElementTree.Element) -> list[str]:
    if tag(cell) not in ("table-cell", "covered-table-cell"):
        return []
    text = " ".join(_blocks(cell))
    return [text] * min(int(attribute(cell, "number-columns-repeated") or 1), MAX_REPEATED)


# ---- EPUB ----------------------------------------------------------------------------------------------------


def read_epub(file: BinaryIO, source: str, problems: list[str]) -> Iterator[Document]:
    """An epub file: one document a chapter that has text, in the order of the book."""
    with unzipped(file, "epub") as archive:
        names = set(archive.namelist())
        root = next(node for node in xml(archive, "META-INF/container.xml").iter() if tag(node) == "rootfile")
        path = root.attrib["full-path"]
        package = list(xml(archive, path).iter())
        metadata: dict[str, Any] = {
            name: [text for node in package if tag(node) == element and (text := (node.text or "").strip())]
            for name, element in (("title", "title"), ("authors", "creator"))
        }
        metadata = {
            name: values[0] if name == "title" else values for name, values in metadata.items() if values
        }
        items = {
            node.attrib.get("id"): node.attrib.get("href", "") for node in package if tag(node) == "item"
        }
        spine = [items.get(node.attrib.get("idref"), "") for node in package if tag(node) == "itemref"]
        chapters = [
            posixpath.normpath(posixpath.join(posixpath.dirname(path), unquote(href))) for href in spine
        ]
        locks = archive.read("META-INF/encryption.xml") if "META-INF/encryption.xml" in names else b""
        for number, chapter in enumerate((name for name in chapters if name in names), start=1):
            if chapter.encode() in locks:
                raise Unreadable("it is encrypted by its seller; index another copy")
            text, _ = parse_html(decode_html(archive.read(chapter), source, problems))
            yield with_metadata(text, metadata, source=source, chapter=number)


def _whole(texts: Iterable[str], source: str) -> Document:
    return with_metadata("\n\n".join(filter(str.strip, texts)), {}, source=source)
