"""The reader of docx files.

mammoth makes HTML of a file, and leaves out elements that it does not know with all that is in them. So the parts of a
file are first written in what it knows: wrappers are taken off their contents, text boxes become its old ones, list
items get the numbers that Word shows, headers and footers become part of the body.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from typing import Any, BinaryIO
from xml.etree import ElementTree
from xml.etree.ElementTree import Element
from zipfile import ZipFile

from tandem.plugins.office.html import decode_html, parse_html
from tandem.plugins.office.marks import write_number
from tandem.plugins.office.xml import DROPPED, attribute, describe_dropped, tag, xml
from tandem.retrieval.documents import Document, with_metadata
from tandem.retrieval.readers import decode, unzipped

_STYLES = "comment-reference => sup\np[style-name='Title'] => h1:fresh"
"""Its comments are listed at its end, its title is a heading."""
_BACK_LINK = re.compile(r'<a href="#(?:footnote|endnote|comment)-ref-[^"]*">↑</a>')
_BLOCKS = "anchor body comment customXml document endnote footnote group hyperlink inline ins moveTo object p pict r "
_BLOCKS += "rect roundrect sdt sdtContent shape smartTag t tbl tc textbox tr txbxContent"
_OPENED = frozenset(_BLOCKS.split())
"""Elements whose contents mammoth reads."""
_UNSHOWN = frozenset(("del", "moveFrom", "instrText", "rubyPr", "pPr", "rPr", "sdtPr", "sectPr", "tblPr"))
_WITH_PROPERTIES = frozenset(("acc", "bar", "d", "f", "groupChr", "m", "nary"))
"""Parts of equations that the converter expects to have some."""
_WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
MAX_STYLES = 20
"""Styles that are based on each other."""


def read_docx(file: BinaryIO, source: str, problems: list[str]) -> Iterator[Document]:
    """A docx file: one document; headers come first, footers, notes and comments last."""
    with unzipped(file, "docx"):
        import mammoth
        from markitdown.converter_utils.docx.pre_process import pre_process_docx

        def no_image(image: Any) -> dict[str, str]:
            return {}

        dropped: Counter[str] = Counter()
        known = _written_as_known(pre_process_docx(file), source, problems, dropped)
        html = mammoth.convert_to_html(
            known, style_map=_STYLES, convert_image=mammoth.images.img_element(no_image)
        )
        dropped["symbol"] += sum("w:sym element" in message.message for message in html.messages)
        text = parse_html(_BACK_LINK.sub("", html.value))[0]
    problems += describe_dropped(source, dropped)
    yield with_metadata(text, {}, source=source)


def _written_as_known(file: BinaryIO, source: str, problems: list[str], dropped: Counter[str]) -> BytesIO:
    """The same document in elements that mammoth knows; dropped: counts what has no text in it."""
    written = BytesIO()
    with ZipFile(file) as archive, ZipFile(written, "w") as copy:
        names = sorted(name for name in archive.namelist() if re.fullmatch(r"word/[^/]+\.xml", name))
        roots = {name: xml(archive, name) for name in names}
        numbering = _Numbering(*(_of(roots, kind) for kind in ("numbering", "styles")))
        writer = _Writer(archive, numbering, dropped, source, problems)
        for root in _of(roots, "document", "footnotes", "endnotes", "comments", "hdr", "ftr"):
            writer.write(root)
            dropped.update(DROPPED[tag(node)] for node in root.iter() if tag(node) in DROPPED)
        for body in (body for root in _of(roots, "document") for body in root.findall("{*}body")):
            body[:0] = _margins(_of(roots, "hdr"))
            body.extend(_margins(_of(roots, "ftr")))
        for member in archive.infolist():
            known = roots.get(member.filename)
            if known is None and member.filename.endswith((".xml", ".rels")):
                copy.writestr(member, archive.read(member))
            elif known is not None and tag(known) != "numbering":  # its numbers are text now
                copy.writestr(member, ElementTree.tostring(known, encoding="utf-8"))
    written.seek(0)
    return written


def _of(roots: dict[str, Element], *kinds: str) -> list[Element]:
    return [root for kind in kinds for root in roots.values() if tag(root) == kind]


def _margins(roots: list[Element]) -> list[Element]:
    """What is written above or below the pages, each text once, without links to the parts of its own file."""
    texts = {"".join(root.itertext()): root for root in reversed(roots)}
    for node in (node for root in texts.values() for node in root.iter()):
        for name in [name for name in node.attrib if "/relationships}" in name]:
            del node.attrib[name]
    return [node for root in reversed(texts.values()) for node in root]


@dataclass
class _Writer:
    """Writes the parts of a document in elements that mammoth knows."""

    archive: ZipFile
    numbering: _Numbering
    dropped: Counter[str]
    source: str
    problems: list[str]

    def write(self, node: Element) -> list[Element]:
        """Replaces what is within an element."""
        node[:] = [known for child in node for known in self._known(child)]
        return list(node)

    def _known(self, node: Element) -> list[Element]:
        """What stands for an element."""
        name, space = tag(node), node.tag.rpartition("}")[0] + "}"
        match name:
            case "AlternateContent":
                fallback = node.find("{*}Fallback")
                is_old = fallback is not None and _has_text(fallback)
                branch = fallback if is_old else node.find("{*}Choice")
                return [] if branch is None else self.write(branch)
            case "ruby":
                base, above = node.find("{*}rubyBase"), node.find("{*}rt")
                reading = "" if above is None else "".join(above.itertext())
                return [*([] if base is None else self.write(base)), _element(space, "t", f"({reading})")]
            case "drawing" if boxes := node.findall(".//{*}txbxContent"):
                pict = Element(f"{space}pict")
                pict.extend(boxes)
                self.write(pict)
                return [pict]
            case "altChunk":
                return [_paragraph(space, line) for line in self._embedded(node).split("\n")]
            case "cr" | "ptab":
                return [_element(space, "br" if name == "cr" else "tab")]
            case "br":  # of a page or column, too
                return [_element(space, "br")]
            case "oMath":
                return self._equation(node)
            case "r" if self._is_hidden(node):
                self.dropped["hidden text"] += _has_text(node)
                return []
            case "fldChar":
                return [
                    node,
                    *(_element(space, "t", _chosen(field)) for field in node.iter(f"{space}ddList")),
                ]
            case "p":
                self.numbering.write(node, space)
            case "tr" if number := _value(node, "trPr/gridBefore"):  # columns that the row begins behind
                node[1:1] = [
                    _element(space, "tc", "", _element(space, "p")) for _ in range(min(int(number), 100))
                ]
            case "r" if style := _value(node, "rPr/rStyle"):
                self._align(node[0], style, space)
        if name in _OPENED:
            self.write(node)
        elif name not in _UNSHOWN and _has_text(node):
            return self.write(node)
        return [node]

    def _equation(self, node: Element) -> list[Element]:
        """An equation that the converter gave up, since it does without properties that most have, or is of no use."""
        from markitdown.converter_utils.docx.math.omml import oMath2Latex

        for part in list(node.iter()):
            space, _, name = part.tag.rpartition("}")
            if name in _WITH_PROPERTIES and part.find(f"{{*}}{name}Pr") is None:
                part.insert(0, Element(f"{space}}}{name}Pr"))
        with suppress(Exception):
            if latex := oMath2Latex(node).latex:
                return list(_paragraph(_WORD, f"${latex}$"))
        self.dropped["equation"] += 1
        return []

    def _is_hidden(self, run: Element) -> bool:
        style = self.numbering.styles.get(_value(run, "rPr/rStyle"))
        found = (node.find("{*}rPr/{*}vanish") for node in (run, style) if node is not None)
        vanish = next((node for node in found if node is not None), None)
        return vanish is not None and attribute(vanish, "val") not in ("0", "false", "off")

    def _align(self, properties: Element, style: str, space: str) -> None:
        """Says of a run itself that its style raises or lowers it."""
        value = _value(self.numbering.styles.get(style), "rPr/vertAlign")
        if value and properties.find("{*}vertAlign") is None:
            properties.append(_element(space, "vertAlign"))
            properties[-1].set(f"{space}val", value)

    def _embedded(self, node: Element) -> str:
        """The text of a document that is embedded as a file, if it is text."""
        relations = xml(self.archive, "word/_rels/document.xml.rels")
        targets = {relation.get("Id"): relation.get("Target", "") for relation in relations}
        name = posixpath.join("/word", targets.get(attribute(node, "id"), ""))[1:]
        ending = name.rpartition(".")[2].lower()
        if ending not in ("htm", "html", "xhtml", "txt") or name not in self.archive.namelist():
            self.dropped["embedded document"] += 1
            return ""
        data = self.archive.read(name)
        if ending == "txt":
            return decode(data, self.source, self.problems)
        return parse_html(decode_html(data, self.source, self.problems))[0]


def _has_text(node: Element) -> bool:
    return any(tag(child) == "t" and child.text for child in node.iter())


def _element(space: str, name: str, text: str = "", *children: Element) -> Element:
    node = Element(space + name)
    node.text = text
    node.extend(children)
    return node


def _paragraph(space: str, text: str) -> Element:
    return _element(space, "p", "", _element(space, "r", "", _element(space, "t", text)))


def _chosen(field: Element) -> str:
    """The entry of a list field that is shown."""
    entries = [attribute(entry, "val") for entry in field.findall("{*}listEntry")]
    number = int(_value(field, "result") or _value(field, "default") or 0)
    return entries[number] if 0 <= number < len(entries) else ""


def _value(node: Element | None, path: str) -> str:
    """The attribute `val` of what lies within an element; "" for none."""
    found = None if node is None else node.find("/".join(f"{{*}}{name}" for name in path.split("/")))
    return "" if found is None else attribute(found, "val")


class _Numbering:
    """The lists of a document, and how far each has come."""

    def __init__(self, numbering: list[Element], styles: list[Element]) -> None:
        nodes = [node for root in numbering for node in root]
        self._kinds = {attribute(n, "abstractNumId"): n for n in nodes if tag(n) == "abstractNum"}
        self._lists = {attribute(n, "numId"): n for n in nodes if tag(n) == "num"}
        self.styles = {attribute(node, "styleId"): node for root in styles for node in root}
        self._levels: dict[str, dict[int, Element]] = {}  # of a list
        self._counts: dict[str, dict[int, int]] = {}  # of a kind of list -> per level
        self._begun: set[str] = set()  # lists

    def write(self, paragraph: Element, space: str) -> None:
        """Puts the number that is shown before a paragraph into it."""
        number, at = self._place(paragraph)
        kind = self._kind(number)
        if kind in self._kinds and (label := self._next(number, kind, at)) and _has_text(paragraph):
            place = 0 if paragraph.find("{*}pPr") is None else 1
            paragraph.insert(place, _paragraph(space, f"{label} ")[0])

    def _place(self, paragraph: Element) -> tuple[str, int]:
        """The list that a paragraph is in, by itself or by its style, and its level there; "" for none."""
        number, level = _value(paragraph, "pPr/numPr/numId"), _value(paragraph, "pPr/numPr/ilvl")
        style = _value(paragraph, "pPr/pStyle")
        for _ in range(MAX_STYLES):
            if number or not style:
                break
            number = _value(self.styles.get(style), "pPr/numPr/numId")
            levels = self._levels_of(number).items()
            own = [str(at) for at, level in levels if _value(level, "pStyle") == style]
            level = level or _value(self.styles.get(style), "pPr/numPr/ilvl") or "".join(own[:1])
            style = _value(self.styles.get(style), "basedOn")
        return number, int(level or 0)

    def _kind(self, number: str) -> str:
        """The kind of a list; the lists of one kind count together."""
        kind, style = "", "none yet"
        for _ in range(MAX_STYLES):
            if style:
                kind = _value(self._lists.get(number), "abstractNumId")
                style = _value(self._kinds.get(kind), "numStyleLink")
                number = _value(self.styles.get(style), "pPr/numPr/numId")
        return kind

    def _levels_of(self, number: str) -> dict[int, Element]:
        if number not in self._levels and number in self._lists:
            kind = self._kinds.get(self._kind(number))
            nodes = [] if kind is None else kind.findall("{*}lvl")
            nodes += self._lists[number].findall("{*}lvlOverride/{*}lvl")
            self._levels[number] = {int(attribute(node, "ilvl") or 0): node for node in nodes}
        return self._levels.get(number, {})

    def _next(self, number: str, kind: str, at: int) -> str:
        """Counts an item of a list on a level, and says what stands before it."""
        levels, counts = self._levels_of(number), self._counts.setdefault(kind, {})
        if at not in levels:
            return ""
        if number not in self._begun:
            self._begun.add(number)
            for override in self._lists[number].findall("{*}lvlOverride"):
                if start := _value(override, "startOverride"):
                    counts[int(attribute(override, "ilvl") or 0)] = int(start) - 1
        counts[at] = counts.get(at, int(_value(levels[at], "start") or 0) - 1) + 1
        for deeper in [deeper for deeper in counts if deeper > at]:
            if _value(levels.get(deeper), "lvlRestart") != "0":
                del counts[deeper]
        if _value(levels[at], "numFmt") == "bullet":
            return "-"
        is_legal = levels[at].find("{*}isLgl") is not None

        def shown(match: re.Match[str]) -> str:
            level = levels.get(int(match[1]) - 1)
            if (form := _value(level, "numFmt")) == "none":
                return ""
            count = counts.get(int(match[1]) - 1) or int(_value(level, "start") or 0)
            return write_number(count, "decimal" if is_legal else form)

        return re.sub(r"%([1-9])", shown, _value(levels[at], "lvlText")).strip()
