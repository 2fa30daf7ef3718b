"""The reader of OpenDocument files: archives of XML."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import BinaryIO
from xml.etree.ElementTree import Element
from zipfile import ZipFile

from tandem.plugins.office.marks import DOWN, LEVEL, UP, write_number, write_shifted
from tandem.plugins.office.xml import DROPPED, attribute, describe_dropped, describe_hidden, tag, xml
from tandem.retrieval.documents import Document, with_metadata
from tandem.retrieval.readers import ENCRYPTED, Unreadable, as_table, unzipped

MAX_REPEATED = 1000
"""So often a cell of a sheet may say that it is repeated."""
MAX_STYLES = 20
"""Styles that are based on each other."""
_SHAPES = "caption circle custom-shape ellipse frame g path polygon rect regular-polygon shapes"
_DRAWN = frozenset(_SHAPES.split())
_NUMBERS = {"a": "lower-alpha", "A": "upper-alpha", "i": "lower-roman", "I": "upper-roman"}
"""Values of `num-format` -> how CSS names them."""


def read_odf(file: BinaryIO, source: str, problems: list[str]) -> Iterator[Document]:
    """A file of LibreOffice: an odt is one document, an ods one a sheet (`sheet`), an odp one a slide (`page`)."""
    dropped: Counter[str] = Counter()
    with unzipped(file, "OpenDocument") as archive:
        if b"encryption-data" in archive.read("META-INF/manifest.xml"):
            raise Unreadable(ENCRYPTED)
        content, styles = xml(archive, "content.xml"), xml(archive, "styles.xml")
        _write_embedded(content, archive, dropped)
        marker = _Marker(content, styles)
        for root in (content, styles):
            marker.mark(root, dropped)
    body = next(node for node in content if tag(node) == "body")[0]
    if tag(body) == "text":
        margins = {
            kind: [node for node in styles.iter() if tag(node) == kind] for kind in ("header", "footer")
        }
        texts = dict.fromkeys("\n".join(_blocks(node)) for node in margins["header"])
        texts |= {"\n\n".join(_blocks(body)): None}
        texts |= dict.fromkeys("\n".join(_blocks(node)) for node in margins["footer"])
        whole = "\n\n".join(filter(str.strip, map(write_shifted, texts)))
        yield with_metadata(whole, {}, source=source)
        body = Element("")
    hidden = []
    for number, part in enumerate((node for node in body if tag(node) in ("table", "page")), start=1):
        is_sheet, name = tag(part) == "table", attribute(part, "name")
        if is_sheet and marker.property(attribute(part, "style-name"), "display") == "false":
            hidden.append(name)
            continue
        blocks = [as_table(_rows(part)), *_drawn(part)] if is_sheet else _blocks(part)
        text = write_shifted("\n".join(filter(str.strip, blocks)))
        if text.strip():
            own = {"sheet": name} if is_sheet else {"page": number}
            yield with_metadata(f"# {name}\n{text}" if is_sheet else text, {}, source=source, **own)
    problems += describe_dropped(source, dropped) + describe_hidden(source, hidden)


def _write_embedded(content: Element, archive: ZipFile, dropped: Counter[str]) -> None:
    """Writes formulas as their editor has them in the place of their frames; dropped: counts what else is embedded."""
    for frame in [node for node in content.iter() if tag(node) == "frame"]:
        if not (
            names := [attribute(node, "href") for node in frame if tag(node) in ("object", "object-ole")]
        ):
            continue
        part = f"{names[0].removeprefix('./')}/content.xml"
        root = xml(archive, part) if part in archive.namelist() else Element("")
        formula = next((node.text or "" for node in root.iter() if tag(node) == "annotation"), "")
        if formula:
            tail = frame.tail
            frame.clear()
            frame.tag, frame.text, frame.tail = "span", " ".join(formula.split()), tail
        else:
            kinds = {"math": "equation", "chart": "chart"}
            inner = map(tag, (root, *root.findall("{*}body/*")))
            dropped[next((kinds[name] for name in inner if name in kinds), "embedded object")] += 1


class _Marker:
    """Puts into the text what only styles show: marks of raised and lowered text, and numbers of items and headings."""

    def __init__(self, *roots: Element) -> None:
        nodes = [node for root in roots for node in root.iter()]
        self._styles = {attribute(node, "name"): node for node in nodes if tag(node) == "style"}
        self._lists = {attribute(n, "name"): _levels(n) for n in nodes if tag(n) == "list-style"}
        outlines = [_levels(node) for node in nodes if tag(node) == "outline-style"]
        self._outline = outlines[-1] if outlines else {}
        self._chapters: dict[int, int] = {}  # level -> number of the last heading
        self._last: dict[str, dict[int, int]] = {}  # style of a list -> level -> number of its last item

    def property(self, name: str, key: str) -> str:
        """What a style says, by itself or by the styles on which it is based."""
        for _ in range(MAX_STYLES):
            if (style := self._styles.get(name)) is None:
                break
            if value := next(filter(None, (attribute(properties, key) for properties in style)), ""):
                return value
            name = attribute(style, "parent-style-name")
        return ""

    def mark(self, node: Element, dropped: Counter[str], style: str = "", level: int = 0) -> None:
        """Marks what is within an element; style, level: of the list that it is in. dropped: counts what is hidden."""
        for child in node:
            name, own = tag(child), attribute(child, "style-name")
            if name in DROPPED:
                dropped[DROPPED[name]] += 1
            if self._is_hidden(child):
                dropped["hidden text"] += bool("".join(child.itertext()).strip())
                tail = child.tail
                child.clear()
                child.tail = tail
            elif name == "list":
                if level == 0 and attribute(child, "continue-numbering") != "true":
                    self._last.pop(own, None)
                self.mark(child, dropped, own or style, level + 1)
                continue
            elif name == "list-item":
                child.set("label", self._item(child, style, level))
            elif (
                name == "h"
                and (at := int(attribute(child, "outline-level") or 1)) in self._outline
                and attribute(child, "is-list-header") != "true"
            ):
                label = _label(self._outline, self._chapters, at, attribute(child, "start-value"))
                child.text = f"{label} {child.text or ''}".lstrip(" ")
            elif name == "span" and (mark := self._shift(own)):
                child.text, child.tail = mark + (child.text or ""), LEVEL + (child.tail or "")
            self.mark(child, dropped, style, level)

    def _is_hidden(self, node: Element) -> bool:
        name = tag(node)
        if name in ("p", "h", "span"):
            return self.property(attribute(node, "style-name"), "display") == "none"
        return attribute(node, "display" if name == "section" else "is-hidden") in ("none", "true")

    def _item(self, item: Element, style: str, level: int) -> str:
        """What stands before an item, "" for one that begins with a list of its own."""
        if not len(item) or tag(item[0]) == "list":
            return ""
        levels, counts = self._lists.get(style, {}), self._last.setdefault(style, {})
        return _label(levels, counts, level, attribute(item, "start-value")) if level in levels else "-"

    def _shift(self, style: str) -> str:
        position = self.property(style, "text-position").partition(" ")[0]
        is_low = position.startswith(("sub", "-"))
        return "" if not position.strip("-0%") else DOWN if is_low else UP


def _levels(style: Element) -> dict[int, Element]:
    return {int(attribute(node, "level") or 0): node for node in style}


def _label(levels: dict[int, Element], counts: dict[int, int], at: int, given: str) -> str:
    """Counts an item on a level, and says what stands before it."""
    if tag(levels[at]).endswith(("bullet", "image")):
        return "-"
    first = int(attribute(levels[at], "start-value") or 1)
    counts[at] = int(given) if given else counts.get(at, first - 1) + 1
    for deeper in [deeper for deeper in counts if deeper > at]:
        del counts[deeper]
    if not (kind := attribute(levels[at], "num-format")):
        return ""
    num_shown = int(attribute(levels[at], "display-levels") or 1)
    numbers = []
    for upper in range(max(1, at - num_shown + 1), at + 1):
        kind = attribute(levels[upper], "num-format") if upper in levels else ""
        numbers += [write_number(counts.get(upper, 1), _NUMBERS.get(kind, ""))] * bool(kind)
    return attribute(levels[at], "num-prefix") + ".".join(numbers) + attribute(levels[at], "num-suffix")


def _blocks(node: Element) -> Iterator[str]:
    """The paragraphs, headings, items and tables within an element, each as a text."""
    for child in node:
        match tag(child):
            case "h":
                level = attribute(child, "outline-level")
                yield f"{'#' * min(int(level or 1), 6)} {_inline(child)}"
            case "p":
                if _inline(child).strip():
                    yield _inline(child)
                yield from _drawn(child)
            case "list":
                yield "\n".join(_blocks(child))
            case "list-item":
                first, *others = [*_blocks(child), ""]
                label = child.get("label", "")
                yield "\n".join(filter(None, [f"{label} {first}" if label and first else first, *others]))
            case "table":
                yield as_table(_rows(child))
            case "notes":
                yield "\n".join(["Notes:", *_blocks(child)]) if any(_blocks(child)) else ""
            case "annotation":
                yield f"[{' '.join(_blocks(child))}]"
            case "tracked-changes" | "forms" | "shapes":
                pass
            case _:
                yield from _blocks(child)


def _drawn(node: Element) -> Iterator[str]:
    """The texts in the shapes of a paragraph or a sheet."""
    for child in node:
        if tag(child) in _DRAWN:
            yield from _blocks(child)
        elif tag(child) != "annotation":
            yield from _drawn(child)


def _inline(node: Element) -> str:
    """The text of a paragraph; its notes and comments in brackets where they are called."""
    text = node.text or ""
    for child in node:
        match tag(child):
            case "s":
                text += " " * min(int(attribute(child, "c") or 1), MAX_REPEATED)
            case "tab" | "line-break" | "soft-page-break":
                text += " "
            case "note" | "annotation":
                text += f" [{' '.join(_blocks(child))}]"
            case "ruby-text":
                text += f"({_inline(child)})"
            case name if name not in _DRAWN:
                text += _inline(child)
        text += child.tail or ""
    return text.replace("\u00ad", "")


def _rows(table: Element) -> Iterator[list[str]]:
    """The rows of a table, of columns that hold something."""
    rows = [dict(_cells(row)) for row in _rows_within(table)]
    columns = sorted({column for row in rows for column in row})
    return ([row.get(column, "") for column in columns] for row in rows)


def _rows_within(table: Element) -> Iterator[Element]:
    for child in table:
        if tag(child) in ("table-rows", "table-header-rows", "table-row-group"):
            yield from _rows_within(child)
        elif tag(child) == "table-row":
            yield child


def _cells(row: Element) -> Iterator[tuple[int, str]]:
    """The texts of a row by their columns; what merged cells cover is not seen."""
    column = 0
    for cell in row:
        if tag(cell) not in ("table-cell", "covered-table-cell"):
            continue
        num_columns = int(attribute(cell, "number-columns-repeated") or 1)
        text = " ".join(_blocks(cell)) if tag(cell) == "table-cell" else ""
        if text.strip():
            yield from ((column + at, text) for at in range(min(num_columns, MAX_REPEATED)))
        column += num_columns
