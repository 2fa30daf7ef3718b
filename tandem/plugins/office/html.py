"""HTML as a browser shows it: a line per block, tabs between the cells of a row, headings as in Markdown."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from tandem.plugins.office.marks import BOXES, DOWN, LEVEL, UP, write_number, write_shifted
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
_UNSEEN = frozenset(
    (
        *_MEDIA,
        "annotation",
        "annotation-xml",
        "datalist",
        "head",
        "noscript",
        "rp",
        "script",
        "style",
        "template",
        "title",
    )
)
"""Elements whose text no browser shows."""
_CELLS = ("td", "th", "tr", "tbody", "tfoot")
_HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}
"""As Markdown writes them, so that chunks know them."""
_MARKS = frozenset((*(mark.strip() for mark in (*_HEADINGS.values(), *BOXES.values())), "-"))
"""Lines of headings, items and boxes without text."""
_NEVER_IN_CELLS = frozenset((*_HEADINGS, "dl", "hr", "ol", "pre", "table", "ul"))
MAX_CELL_CHARS = 500
"""A longer cell of a table is text in a column, not data."""
MAX_COLUMNS = 100
MAX_ROWS = 10_000
"""So many columns and rows a cell is taken to be as wide and as high as."""
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
_SHIFTS = {"sup": UP, "super": UP, "text-top": UP, "sub": DOWN, "text-bottom": DOWN}
"""Elements and values of vertical-align -> how they stand."""
_ALIGNED = re.compile(r"vertical-align\s*:\s*(super|sub|text-top|text-bottom)\b", re.IGNORECASE)
_LIST_STYLE = re.compile(
    r"list-style(?:-type)?\s*:[^;]*?([a-z-]*(?:alpha|latin|roman|decimal-leading-zero|none))", re.IGNORECASE
)
_LIST_TYPES = {"a": "lower-alpha", "A": "upper-alpha", "i": "lower-roman", "I": "upper-roman"}
"""Values of the attribute `type` of lists -> those of list-style-type."""
_MATH = {
    **dict.fromkeys(("msup", "mover"), ("", UP)),
    **dict.fromkeys(("msub", "munder"), ("", DOWN)),
    **dict.fromkeys(("msubsup", "munderover"), ("", DOWN, UP)),
}
"""Elements of MathML -> how their children stand."""
_STRUCK = ("del", "s", "strike")
"""Elements whose text is struck through."""
_UNTYPED = ("color", "file", "hidden", "image", "password", "range")
"""Types of `input` whose value is not shown as text."""
_HIDDEN_STYLE = re.compile(
    r"(?:^|[;{\s])(?:display\s*:\s*none|visibility\s*:\s*(?:hidden|collapse)|opacity\s*:\s*0*\.?0+(?![\d.])|"
    r"font-size\s*:\s*0(?![\d.]))",
    re.IGNORECASE,
)
MAX_STYLING_RULES = 100
"""Rules of a page's style sheets that are looked at for what they hide, and for what they raise."""


def read_html(file: BinaryIO, source: str, problems: list[str]) -> Iterator[Document]:
    """An html file: one document of what a reader sees, a line per block; its title becomes metadata."""
    text, title = parse_html(decode_html(file.read(), source, problems))
    yield with_metadata(text, {"title": title} if title else {}, source=source)


def decode_html(data: bytes, source: str, problems: list[str]) -> str:
    """The code of a page, in the encoding that it declares if it is not UTF-8. Raises Unreadable."""
    from bs4.dammit import EncodingDetector

    return decode(data, source, problems, EncodingDetector.find_declared_encoding(data, is_html=True) or "")


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
    lines = [_collapse(line) for line in write_shifted("".join(_shown(page))).split("\n")]
    return "\n".join(line for line in lines if line.strip() and line not in _MARKS), title


def _collapse(line: str) -> str:
    """White space as a browser shows it; what is kept of `pre` comes as it is."""
    cells = (" ".join(cell.split()) for cell in line.lstrip(" ").removeprefix("\t").split("\t"))
    return "\t".join(cells).rstrip().translate(_WRITTEN)


_KEEP = str.maketrans(" \t", "\ue000\ue001", "\r")
"""Private characters in the place of what `pre` keeps, until all other white space is collapsed."""
_WRITTEN = str.maketrans("\ue000\ue001", " \t", "\u00ad")  # a soft hyphen is not seen


class _Items:
    """The items of a list, as a browser counts them."""

    def __init__(self, tag: Tag) -> None:
        self._is_ordered = tag.name == "ol"
        self._kind = _list_kind(tag)
        self._step = -1 if self._is_ordered and "reversed" in tag.attrs else 1
        start = _integer(tag, "start")
        if start is None and self._step < 0:
            start = sum(item.find_parent(("ol", "ul", "menu")) is tag for item in tag.find_all("li"))
        self._number = 1 if start is None else start

    def mark(self, item: Tag) -> str:
        """What stands before the next one."""
        if not self._is_ordered:
            return "- "
        value = _integer(item, "value")
        number = self._number if value is None else value
        self._number = number + self._step
        kind = _list_kind(item) or self._kind
        return "" if kind == "none" else f"{write_number(number, kind)}. "


def _list_kind(tag: Tag) -> str:
    """How the items of a list are numbered, as CSS names it; "" if nothing is said."""
    if style := _LIST_STYLE.search(str(tag.attrs.get("style", ""))):
        return style[1].lower()
    return _LIST_TYPES.get(str(tag.attrs.get("type", "")).strip(), "")


def _integer(tag: Tag, name: str) -> int | None:
    value = str(tag.attrs.get(name, "")).strip()
    return int(value) if re.fullmatch(r"-?\d{1,9}", value) else None


class _Grid:
    """The columns of a table, of which cells of rows above may take some, without an element in the row."""

    def __init__(self) -> None:
        self.taken: set[int] = set()  # in the row
        self._rows_left: dict[int, int] = {}  # column -> how many rows a cell in it still reaches into
        self._last, self._next = -1, 0

    def begin_row(self) -> None:
        """Goes on to the next row."""
        self.taken = set(self._rows_left)
        self._rows_left = {column: left - 1 for column, left in self._rows_left.items() if left > 1}
        self._last, self._next = -1, 0

    def begin_group(self) -> None:
        """Goes on to another group of rows, into which no cell reaches."""
        self._rows_left = {}

    def place(self, cell: Tag) -> int:
        """Puts a cell into the next free column, and says how many columns after the one before it."""
        while self._next in self.taken:
            self._next += 1
        column, before = self._next, self._last
        width, height = _span(cell, "colspan", MAX_COLUMNS), _span(cell, "rowspan", MAX_ROWS)
        if height > 1:
            self._rows_left |= dict.fromkeys(range(column, column + width), height - 1)
        self._last, self._next = column, column + width
        return column - before


def _span(cell: Tag, name: str, most: int) -> int:
    """How many columns or rows a cell takes; 0 stands for all that there are."""
    value = _integer(cell, name)
    return 1 if value is None or value < 0 else min(value or most, most)


class _Place(NamedTuple):
    """Where in a page a piece of text is."""

    is_kept: bool = False  # with its spaces and line ends
    is_flat: bool = False  # in one line, whatever is in it
    items: _Items | None = None  # of the list that it is in
    grid: _Grid | None = None  # of the table that it is in
    first: Tag | None = None  # the choice that is shown of a list in which none is selected


def _shown(page: BeautifulSoup) -> Iterator[str]:
    """The pieces of text that a browser shows, in their order, with line breaks around blocks."""
    from bs4.element import CData, NavigableString, RubyTextString, Tag

    hidden, aligned = _styled_by_sheets(page, _HIDDEN_STYLE), _styled_by_sheets(page, _ALIGNED)
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
            shift = _shift(item, aligned.get(id(item), ""))
            before, behind = _around(item) if cover.ends is None else ("", "")
            yield edge + shift + before
            if cover.ends is None:
                yield _before(item, place) + _value(item, place)
            place = _within(item, place)
            left += [
                (behind + LEVEL * bool(shift) + edge, _Place(), shown),
                *((child, place, cover) for child in reversed(item.contents)),
            ]
        elif cover.ends is not None:
            continue
        elif type(item) in (NavigableString, RubyTextString) and place.is_kept:
            yield item.translate(_KEEP)
        elif type(item) in (
            NavigableString,
            RubyTextString,
        ):  # other subclasses are comments, doctypes and the like
            yield " ".join(f"|{item}|".split())[1:-1]  # the bars keep one space at either end
        elif type(item) in (str, CData):
            yield item


def _before(tag: Tag, place: _Place) -> str:
    """What stands before the text of an element: the marks of a heading or an item, or what keeps it apart."""
    if tag.name in _HEADINGS:
        return "" if place.is_flat else _HEADINGS[tag.name]
    if tag.name == "li":
        return place.items.mark(tag) if place.items else ""
    if place.grid:
        if tag.name == "tr":
            place.grid.begin_row()
        elif tag.name in ("td", "th"):
            return "\t" * place.grid.place(tag)
        elif tag.name in _CELLS:
            place.grid.begin_group()
    return _APART.get(tag.name, "")


def _around(tag: Tag) -> tuple[str, str]:
    """What stands before and behind the text of an element that is struck, a reading, or part of a fraction."""
    above = tag.parent.name if tag.parent else ""
    if tag.name in _STRUCK and above not in _STRUCK and tag.get_text(strip=True) and not tag.find(_BREAKS):
        return "~~", "~~"
    if tag.name == "rt":
        return "(", ")"
    if above == "mfrac":
        line = "/" if tag.find_previous_siblings(True) else ""
        is_word = tag.get_text(strip=True).replace(".", "").isalnum()
        return (line, "") if is_word else (f"{line}(", ")")
    return "", ""


def _shift(tag: Tag, aligned: str) -> str:
    """The mark before raised or lowered text; aligned: how the page's style sheets align it."""
    parent = tag.parent.name if tag.parent else ""
    if parent in _MATH:
        return dict(enumerate(_MATH[parent])).get(len(tag.find_previous_siblings(True)), "")
    style = _ALIGNED.search(str(tag.attrs.get("style", "")))
    return _SHIFTS.get(style[1].lower() if style else aligned or tag.name, "")


def _within(tag: Tag, place: _Place) -> _Place:
    """How the contents of an element are shown that is itself shown like `place`."""
    if tag.name in ("ol", "ul", "menu"):
        return place._replace(items=_Items(tag))
    if tag.name == "table":
        return place._replace(grid=_Grid())
    if tag.name == "select" and "multiple" not in tag.attrs and not tag.find("option", selected=True):
        return place._replace(first=tag.find("option"))
    return place._replace(
        is_kept=place.is_kept or tag.name in _KEPT,
        is_flat=place.is_flat
        or tag.name in _HEADINGS
        or (tag.name in ("td", "th") and _is_flat(tag, place.grid)),
    )


def _is_flat(cell: Tag, grid: _Grid | None) -> bool:
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
    if grid and grid.taken:
        return True
    return any(isinstance(item, Tag) and item is not cell for item in (cell.parent or cell).contents)


@dataclass(slots=True)
class _Cover:
    """An element that hides contents, up to the first element that ends it: HTML allows to leave ends out, and
    the parser puts what is behind such an element into it.
    """

    ends: Collection[str] | None  # None: nothing is hidden


def _value(tag: Tag, place: _Place) -> str:
    """The text or the mark of a form's field, which is not within the element."""
    attributes = tag.attrs
    kind = str(attributes.get("type", "")).lower()
    if tag.name == "option":
        return BOXES["selected" in attributes or tag is place.first]
    if tag.name == "input" and kind in ("checkbox", "radio"):
        return BOXES["checked" in attributes]
    if attributes.get("aria-checked") in ("true", "false"):
        return BOXES[attributes["aria-checked"] == "true"]
    is_text = tag.name == "input" and kind not in _UNTYPED
    return str(attributes.get("value", "")) if is_text else ""


def _is_hidden(tag: Tag) -> bool:
    attributes = tag.attrs
    return bool(
        "hidden" in attributes
        or (tag.name == "dialog" and "open" not in attributes)
        or _HIDDEN_STYLE.search(str(attributes.get("style", "")))
    )


def _styled_by_sheets(page: BeautifulSoup, style: re.Pattern[str]) -> dict[int, str]:
    """Ids of the elements that the page's own style sheets style like that, whatever the medium -> the value."""
    if not (styles := page.find_all("style", string=style)):
        return {}
    import tinycss2
    from soupsieve import SelectorSyntaxError

    sheets = [
        tinycss2.parse_stylesheet(sheet.get_text(), skip_comments=True, skip_whitespace=True)
        for sheet in styles
    ]
    rules = [
        (tinycss2.serialize(rule.prelude), match[match.lastindex or 0].lower())
        for sheet in sheets
        for rule in sheet
        if rule.type == "qualified-rule" and (match := style.search(tinycss2.serialize(rule.content)))
    ]
    styled: dict[int, str] = {}
    for selector, value in rules[:MAX_STYLING_RULES]:
        with suppress(SelectorSyntaxError, NotImplementedError, ValueError):
            styled |= dict.fromkeys(map(id, page.select(selector)), value)
    return styled
