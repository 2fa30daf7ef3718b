"""Readers of what people write in offices: documents, slides, sheets and books.

Formats of Microsoft are taken apart by the converters of markitdown and by what these stand on; values of cells are
read as they are shown. EPUB is an archive of XML and HTML.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from io import BytesIO
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import unquote
from zipfile import ZipFile

from tandem.plugins.office.html import decode_html, parse_html
from tandem.plugins.office.marks import DOWN, LEVEL, UP, write_number, write_shifted
from tandem.plugins.office.xml import DROPPED, describe_dropped, describe_hidden, tag, xml
from tandem.retrieval.documents import Document, with_metadata
from tandem.retrieval.readers import Unreadable, as_table, unzipped

if TYPE_CHECKING:
    from openpyxl import Workbook
    from openpyxl.cell.cell import Cell
    from openpyxl.worksheet.worksheet import Worksheet

_SLIDE = re.compile(r"<!-- Slide number: (\d+) -->\n?")
_PICTURE = re.compile(r"!\[([^\]]*)\]\([^)]*\)")
_NO_PICTURE = re.compile(r"(?:Picture|Image|Grafik|Bild|Content Placeholder)? ?\d*", re.IGNORECASE)
"""Names of pictures that nobody gave."""
_ITEMS = {
    "alphaLc": "lower-alpha",
    "alphaUc": "upper-alpha",
    "romanLc": "lower-roman",
    "romanUc": "upper-roman",
}
"""How kinds of numbers of items begin -> how CSS names them."""
_LOCAL_FORMATS = ("General", "mm-dd-yy", "m/d/yy h:mm")
"""Formats that show a number or a date as the machine's settings say."""
_DOT = re.compile(r'"[^"]*"|\\.|\.(?!0)')
_MINUTES = re.compile(r"h[^a-z]*m|\[m")
_LANGUAGE = re.compile(r"\[\$-[^\]]*\]")
_ESCAPED = re.compile("_x([0-9A-Fa-f]{4})_")
"""How texts of sheets have what XML cannot hold."""
_SHIFTS = {"superscript": UP, "subscript": DOWN}
_RULE = re.compile(r"\|(?: ?:?-+:? ?\|)+")


def read_pptx(file: BinaryIO, source: str, problems: list[str]) -> Iterator[Document]:
    """A pptx file: one document a slide that has text; `page` is its number, counted from 1."""
    with unzipped(file, "pptx"):
        from markitdown import StreamInfo
        from markitdown.converters import PptxConverter

        plain = {"escape_asterisks": False, "escape_underscores": False, "escape_misc": False}
        dropped: Counter[str] = Counter()
        marked = _with_marks(file, dropped)
        text = PptxConverter().convert(marked, StreamInfo(extension=".pptx"), **plain).markdown
    problems += describe_dropped(source, dropped)
    _, *slides = _SLIDE.split(write_shifted(text))
    for number, slide in zip(slides[::2], slides[1::2], strict=True):
        lines = [_slide_line(line) for line in slide.replace("\v", "\n").splitlines()]
        text = re.sub(r"\n{3,}", "\n\n", "\n".join(line for line in lines if line is not None)).strip()
        yield with_metadata(text, {}, source=source, page=int(number))


def _with_marks(file: BinaryIO, dropped: Counter[str]) -> BinaryIO:
    """The same slides with marks around what is raised, lowered or struck, and numbers before items; dropped: counts
    what has no text in them."""
    import pptx

    deck = pptx.Presentation(file)
    num_changes = 0
    for slide in deck.slides:
        for part in [slide, slide.notes_slide] if slide.has_notes_slide else [slide]:
            for node in part.element.findall(".//{*}AlternateContent"):
                for shape in node.findall("{*}Choice/{*}sp"):  # which the library passes over
                    shape.find(".//{*}cNvSpPr").set("txBox", "1")
                    node.addprevious(shape)
                    num_changes += 1
                dropped["chart"] += len(node.findall("{*}Choice//{*}chart"))
            dropped.update(
                DROPPED[tag(node)] for node in part.element.iter("{*}relIds", "{*}oleObj", "{*}oMath")
            )
            for body in part.element.iter("{*}txBody"):
                num_changes += _number_items(body)
            for node in part.element.iter("{*}t"):
                properties = node.getparent().find("{*}rPr")
                if not node.text or properties is None:
                    continue
                if properties.get("strike", "noStrike") != "noStrike":
                    node.text = f"~~{node.text}~~"
                    num_changes += 1
                baseline = properties.get("baseline", "")
                if baseline.rstrip("%").strip("-0."):
                    node.text = (DOWN if baseline[0] == "-" else UP) + node.text + LEVEL
                    num_changes += 1
    file.seek(0)
    if num_changes == 0:
        return file
    marked = BytesIO()
    deck.save(marked)
    marked.seek(0)
    return marked


def _number_items(body: Any) -> int:
    """Puts the numbers that are shown before paragraphs into them, and counts these."""
    counts: dict[int, int] = {}
    num_items = 0
    for paragraph in body.iterfind("{*}p"):
        properties, text = paragraph.find("{*}pPr"), paragraph.find(".//{*}t")
        level = 0 if properties is None else int(properties.get("lvl", 0))
        item = None if properties is None else properties.find("{*}buAutoNum")
        counts = {
            at: count for at, count in counts.items() if at < level or (at == level and item is not None)
        }
        if item is None or text is None:
            continue
        counts[level] = counts.get(level, int(item.get("startAt", 1)) - 1) + 1
        kind = item.get("type", "")
        number = write_number(counts[level], _ITEMS.get(kind[:7], ""))
        before = "(" if kind.endswith("ParenBoth") else ""
        behind = "." if kind.endswith("Period") else ")" if "Paren" in kind else ""
        text.text = f"{before}{number}{behind} {text.text or ''}"
        num_items += 1
    return num_items


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
        book = _workbook(file, data_only=True)
        has_formulas = any(
            b"<f" in archive.read(name) for name in archive.namelist() if name.startswith("xl/worksheets/")
        )
        formulas = _workbook(file, data_only=False) if has_formulas else book
        num_open = 0
        dropped = Counter(chart=len(book.chartsheets))
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
            lines = [*filter(None, [as_table(rows)]), *_drawn(sheet, archive, dropped), *comments]
            if lines:
                text = "\n".join([f"# {sheet.title}", *lines])
                yield with_metadata(text, {}, source=source, sheet=sheet.title)
    problems += describe_dropped(source, dropped)
    if num_open:
        are = (
            "formula has no value in the file and was read as it is"
            if num_open == 1
            else ("formulas have no value in the file and were read as they are")
        )
        problems.append(f"{source}: {num_open} {are}; open it and save it once.")
    problems += describe_hidden(source, hidden)


def _drawn(sheet: Worksheet, archive: ZipFile, dropped: Counter[str]) -> Iterator[str]:
    """The paragraphs in the shapes of a sheet; dropped: counts what else is drawn there."""
    names = {relation.target for relation in sheet._rels if relation.Type.endswith("/drawing")}
    for name in sorted(names & set(archive.namelist())):
        root = xml(archive, name)
        for fallback in root.findall(".//{*}Fallback"):  # says that the program is too old
            fallback.clear()
        dropped.update(DROPPED[tag(node)] for node in root.iter() if tag(node) in DROPPED)
        for paragraph in root.iterfind(".//{*}txBody/{*}p"):
            if text := "".join(node.text or "" for node in paragraph.iterfind(".//{*}t")).strip():
                yield text


def _workbook(file: BinaryIO, *, data_only: bool) -> Workbook:
    """A workbook without the cells under merged ones and behind links. The library makes one for each cell of a range,
    and a range can be a whole sheet."""
    from openpyxl.reader.excel import ExcelReader
    from openpyxl.worksheet.worksheet import Worksheet

    class Sheet(Worksheet):  # type: ignore[misc]
        def __getitem__(self, key: str) -> Any:
            return () if ":" in key else super().__getitem__(key)

        def _clean_merge_range(self, merged: Any) -> None:
            rows, columns = (
                range(merged.min_row, merged.max_row + 1),
                range(merged.min_col, merged.max_col + 1),
            )
            is_small = len(rows) * len(columns) < len(self._cells)
            for row, column in merged.cells if is_small else list(self._cells):
                if row in rows and column in columns and (row, column) != (rows[0], columns[0]):
                    self._cells.pop((row, column), None)

    class Reader(ExcelReader):  # type: ignore[misc]
        def read_workbook(self) -> None:
            super().read_workbook()
            self.wb.create_sheet = self._create_sheet

        def _create_sheet(self, title: str) -> Sheet:
            sheet = Sheet(self.wb, title)
            self.wb._add_sheet(sheet)
            return sheet

    reader = Reader(file, data_only=data_only, keep_links=False, rich_text=True)
    reader.read()
    return reader.wb


def _shown(cell: Cell) -> str:
    """The value of a cell as its number format shows it, or as it is where that is left to the machine's settings."""
    from xlfmt import format_value

    value, code = _written(cell.value), cell.number_format
    sign = ""
    if isinstance(value, timedelta) and value < timedelta():
        value, sign = -value, "-"
    if isinstance(value, datetime | time | timedelta):
        value = _cut(value, code)
    if isinstance(value, timedelta):
        value /= timedelta(days=1)
    if value is None or isinstance(value, bool) or code in _LOCAL_FORMATS:
        return _plain(value)
    if isinstance(value, date):  # the library takes a bare dot for one of decimals
        code = _DOT.sub(lambda match: match[0] if match[0] != "." else r"\.", code)
    else:  # and a language for its currency
        code = _LANGUAGE.sub("", code)
    with suppress(ArithmeticError, TypeError, ValueError):  # of odd formats
        text = str(format_value(value, code))
        if text.strip("# "):
            return sign + text
    return sign + _plain(value)


def _written(value: object) -> object:
    """The value of a cell; of a text what its escapes mean, and what is raised or lowered written as such."""
    if isinstance(value, list):  # of texts, some with a font
        fonts = (getattr(part, "font", None) for part in value)
        marks = (_SHIFTS.get(str(font and font.vertAlign), "") for font in fonts)
        parts = (f"{mark}{part}{LEVEL * bool(mark)}" for mark, part in zip(marks, value, strict=True))
        value = write_shifted("".join(parts))
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), value) if isinstance(value, str) else value


def _cut(value: datetime | time | timedelta, code: str) -> datetime | time | timedelta:
    """A time without the seconds and minutes that its format does not show; the library rounds."""
    shown = _DOT.sub("", code).lower()
    if "s" in shown:
        return value
    has_minutes = _MINUTES.search(shown) is not None
    if isinstance(value, timedelta):
        return value - value % timedelta(hours=not has_minutes, minutes=has_minutes)
    return value.replace(minute=value.minute * has_minutes, second=0, microsecond=0)


def _plain(value: object) -> str:
    if value is None or isinstance(value, bool):
        return "" if value is None else str(value).upper()
    if isinstance(value, datetime) and value.time() == time():
        value = value.date()
    if isinstance(value, date | time):
        return value.isoformat().replace("T", " ")
    return f"{value:.15g}" if isinstance(value, float) else str(value)


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
            posixpath.normpath(posixpath.join(posixpath.dirname(path), unquote(href.partition("#")[0])))
            for href in spine
        ]
        missing = sum(name not in names for name in chapters)
        if missing:
            were = "chapter that it lists is" if missing == 1 else "chapters that it lists are"
            problems.append(f"{source}: {missing} {were} not in the file; index another copy.")
        locks = archive.read("META-INF/encryption.xml") if "META-INF/encryption.xml" in names else b""
        for number, chapter in enumerate((name for name in chapters if name in names), start=1):
            if chapter.encode() in locks:
                raise Unreadable("it is encrypted by its seller; index another copy")
            text, _ = parse_html(decode_html(archive.read(chapter), source, problems))
            yield with_metadata(text, metadata, source=source, chapter=number)
