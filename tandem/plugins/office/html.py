"""HTML as a browser shows it: a line per block, tabs between the cells of a row, headings as in Markdown."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from tandem.retrieval.documents import Document, with_metadata
from tandem.retrieval.readers import Unreadable, decode, without_quotes

if TYPE_CHECKING:
    from bs4 import BeautifulSoup
    from bs4.element import Tag

_BLOCKS = "address article aside blockquote br caption center dd details dialog div dl dt fieldset figcaption figure "
_BLOCKS += (
    "footer form h1 h2 h3 h4 h5 h6 header hgroup hr legend li main menu nav ol optgroup option p pre search "
)
_BLOCKS += "section select summary table tbody textarea tfoot thead tr ul"
_BREAKS = frozenset(_BLOCKS.split())
"""Elements that begin and end a line."""
_APART = {"td": "\t", "th": "\t", "button": " ", "input": " ", "meter": " ", "progress": " "}
"""Elements within a line -> what stands before them."""
_KEPT = frozenset(("pre", "textarea", "listing"))
"""Elements whose spaces and line ends are part of the text."""
_MEDIA = ("audio", "canvas", "iframe", "object", "svg", "video")
_UNSEEN = frozenset((*_MEDIA, "datalist", "head", "noscript", "rp", "script", "style", "template", "title"))
"""Elements whose text no browser shows."""
_CELLS = ("td", "th", "tr", "tbody", "tfoot")
_HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}
"""As Markdown writes them, so that chunks know them."""
_MARKS = frozenset((*(mark.strip() for mark in _HEADINGS.values()), "-"))
"""Lines of headings and items without text."""
_NEVER_IN_CELLS = frozenset((*_HEADINGS, "dl", "hr", "ol", "pre", "table", "ul"))
MAX_CELL_CHARS = 500
"""A longer cell of a table is text in a column, not data."""
MAX_COLUMNS = 100
_ENDS: dict[str, Collection[str]] = {
    "p": _BREAKS - {"br"},
    "li": ("li",),
    **dict.fromkeys(("dt", "dd"), ("dt", "dd")),
    **dict.fromkeys(("td", "th"), _CELLS),
    "tr": _CELLS[2:],
    "option": ("option", "optgroup"),
    "optgroup": ("optgroup",),
}
"""Elements whose end may be left out -> the next ones that end them."""
_LISTS = frozenset(("dl", "menu", "ol", "select", "table", "ul"))
"""Elements whose own items end nothing outside."""
_UNTYPED = ("checkbox", "color", "file", "hidden", "image", "password", "radio", "range")
"""Types of `input` whose value is not shown as text."""
_HIDDEN_STYLE = re.compile(
    r"(?:^|[;{\s])(?:display\s*:\s*none|visibility\s*:\s*(?:hidden|collapse)|opacity\s*:\s*0*\.?0+(?![\d.])|"
    r"font-size\s*:\s*0(?![\d.]))",
    re.IGNORECASE,
)
MAX_HIDING_RULES = 100
"""Rules of a page's style sheets that are looked at for what they hide."""


def read_html(file: BinaryIO, source: str, problems: list[str]) -> Iterator[Document]:
    """An html file: one document of what a reader sees, a line per block; its title becomes metadata."""
    from bs4.dammit import EncodingDetector

    data = file.read()
    declared = EncodingDetector.find_declared_encoding(data, is_html=True) or ""
    text, title = parse_html(decode(data, source, problems, declared))
    yield with_metadata(text, {"title": title} if title else {}, source=source)


def parse_html(code: str) -> tuple[str, str]:
    """The text that a browser shows, and the title. Raises Unreadable.

    A line per block, a tab between cells, white space collapsed but in `pre`.
    """
    from bs4 import BeautifulSoup
    from bs4.exceptions import ParserRejectedMarkup

    try:
        page = BeautifulSoup(code, "html.parser")
    except ParserRejectedMarkup as error:
        why = str(error).strip().splitlines()[-1].partition(": ")[2]
        raise Unreadable(
            f"it is not sound html ({without_quotes(why)}); repair it or save it as text"
        ) from None
    title = " ".join(page.title.get_text().split()) if page.title else ""
    lines = [_collapse(line) for line in "".join(_shown(page)).split("\n")]
    return "\n".join(line for line in lines if line.strip() and line not in _MARKS), title


def _collapse(line: str) -> str:
    """White space as a browser shows it; what is kept of `pre` comes as it is."""
    cells = (" ".join(cell.split()) for cell in line.lstrip(" ").removeprefix("\t").split("\t"))
    return "\t".join(cells).rstrip().translate(_WRITTEN)


_KEEP = str.maketrans(" \t", "\ue000\ue001", "\r")
"""Private characters in the place of what `pre` keeps, until all other white space is collapsed."""
_WRITTEN = str.maketrans("\ue000\ue001", " \t", "\u00ad")  # a soft hyphen is not seen


class _Place(NamedTuple):
    """Where in a page a piece of text is."""

    is_kept: bool = False  # with its spaces and line ends
    is_flat: bool = False  # in one line, whatever is in it
    items: Iterator[str] = itertools.repeat("")  # what stands before the items of the list that it is in


def _shown(page: BeautifulSoup) -> Iterator[str]:
    """The pieces of text that a browser shows, in their order, with line breaks around blocks."""
    from bs4.element import CData, NavigableString, Tag

    hidden = _hidden_by_sheets(page)
    shown = _Cover(None)
    left: list[tuple[Any, _Place, _Cover]] = [(page, _Place(), shown)]  # to come, the next one last
    while left:
        item, place, cover = left.pop()
        if isinstance(item, Tag):
            if item.name in _UNSEEN:
                continue
            if cover.ends is not None and item.name in cover.ends:
                cover.ends = None
            if cover.ends is None and (id(item) in hidden or _is_hidden(item)):
                cover = _Cover(_ENDS.get(item.name, ()))
            elif cover.ends and item.name in _LISTS:
                cover = _Cover(())
            if item.name in _CELLS:
                place = place._replace(is_flat=False)
            edge = "" if item.name not in _BREAKS else " " if place.is_flat else "\n"
            yield edge
            if cover.ends is None:
                yield _before(item, place) + _value(item)
            place = _within(item, place)
            left += [
                (edge + _behind(item), _Place(), shown),
                *((child, place, cover) for child in reversed(item.contents)),
            ]
        elif cover.ends is not None:
            continue
        elif type(item) is NavigableString and place.is_kept:
            yield item.translate(_KEEP)
        elif type(item) is NavigableString:  # subclasses are comments, doctypes and the like
            yield " ".join(f"|{item}|".split())[1:-1]  # the bars keep one space at either end
        elif type(item) in (str, CData):
            yield item


def _before(tag: Tag, place: _Place) -> str:
    """What stands before the text of an element: the marks of a heading or an item, or what keeps it apart."""
    if tag.name in _HEADINGS:
        return "" if place.is_flat else _HEADINGS[tag.name]
    return next(place.items) if tag.name == "li" else _APART.get(tag.name, "")


def _behind(tag: Tag) -> str:
    """What stands behind a cell that is as wide as several."""
    width = str(tag.attrs.get("colspan", "")) if tag.name in _APART else ""
    return "\t" * (min(int(width), MAX_COLUMNS) - 1) if width.isdecimal() else ""


def _within(tag: Tag, place: _Place) -> _Place:
    """How the contents of an element are shown that is itself shown like `place`."""
    if tag.name in ("ol", "ul", "menu"):
        return place._replace(items=_numbers(tag) if tag.name == "ol" else itertools.repeat("- "))
    return place._replace(
        is_kept=place.is_kept or tag.name in _KEPT,
        is_flat=place.is_flat or tag.name in _HEADINGS or (tag.name in ("td", "th") and _is_flat(tag)),
    )


def _numbers(tag: Tag) -> Iterator[str]:
    first = str(tag.attrs.get("start", "")).strip()
    return (f"{number}. " for number in itertools.count(int(first) if first.isdecimal() else 1))


def _is_flat(cell: Tag) -> bool:
    """Whether a cell is one of a table of data, so that it is shown within the line of its row; pages also use tables
    for columns of text.
    """
    from bs4.element import Tag

    num_chars = 0
    for item in cell.descendants:
        if isinstance(item, Tag) and item.name in _CELLS:  # the next one, behind an end that was left out
            return True
        num_chars += len(item) if isinstance(item, str) else 0
        if num_chars > MAX_CELL_CHARS or (isinstance(item, Tag) and item.name in _NEVER_IN_CELLS):
            return False
    return any(isinstance(item, Tag) and item is not cell for item in (cell.parent or cell).contents)


@dataclass(slots=True)
class _Cover:
    """An element that hides contents, up to the first element that ends it: HTML allows to leave ends out, and
    the parser puts what is behind such an element into it.
    """

    ends: Collection[str] | None  # None: nothing is hidden


def _value(tag: Tag) -> str:
    """The text of a form's field, which is not within the element."""
    attributes = tag.attrs
    is_text = tag.name == "input" and str(attributes.get("type", "")).lower() not in _UNTYPED
    return str(attributes.get("value", "")) if is_text else ""


def _is_hidden(tag: Tag) -> bool:
    attributes = tag.attrs
    return bool(
        "hidden" in attributes
        or (tag.name == "dialog" and "open" not in attributes)
        or _HIDDEN_STYLE.search(str(attributes.get("style", "")))
    )


def _hidden_by_sheets(page: BeautifulSoup) -> set[int]:
    """Ids of the elements that the page's own style sheets hide, whatever the medium."""
    if not (styles := page.find_all("style")):
        return set()
    import tinycss2
    from soupsieve import SelectorSyntaxError

    sheets = [
        tinycss2.parse_stylesheet(sheet.get_text(), skip_comments=True, skip_whitespace=True)
        for sheet in styles
    ]
    selectors = [
        tinycss2.serialize(rule.prelude)
        for sheet in sheets
        for rule in sheet
        if rule.type == "qualified-rule" and _HIDDEN_STYLE.search(tinycss2.serialize(rule.content))
    ]
    hidden: set[int] = set()
    for selector in selectors[:MAX_HIDING_RULES]:
        with suppress(SelectorSyntaxError, NotImplementedError, ValueError):
            hidden.update(map(id, page.select(selector)))
    return hidden
