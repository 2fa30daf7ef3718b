"""One reader per file format: bytes of one file in, documents with text out.

A reader yields `Document`s, appends a sentence to `problems` for a part that it must leave out, and raises
`Unreadable` when the whole file is of no use.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tandem.retrieval.documents import MAX_DEPTH, Document, is_too_deep, with_metadata
from tandem.system.file_kinds import FILE_KINDS

if TYPE_CHECKING:
    from bs4 import BeautifulSoup
    from bs4.element import Tag
    from pypdf import PageObject, PdfReader

MAX_LINE_PROBLEMS = 10
"""Malformed lines of one jsonl file that are named one by one; the rest is counted."""

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
_ENDS: dict[str, Collection[str]] = {
    "p": _BREAKS - {"br"},
    "li": ("li",),
    "dt": ("dt", "dd"),
    "dd": ("dt", "dd"),
}
_ENDS |= {
    "td": _CELLS,
    "th": _CELLS,
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

_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_QUOTES = re.compile(r"""(['"]).{1,2}\1|b?(['"]).*""", re.DOTALL)
MAX_NAMED = 10
"""Ignored fields that one sentence names."""
MAX_NAME_CHARS = 40
"""So much of the name of an ignored field is shown."""


class Unreadable(Exception):
    """A file cannot be used; the text says why and what to do, to follow '<file> was left out: '."""


Reader = Callable[[Path, str, list[str]], Iterator[Document]]


def read_text(path: Path, source: str, problems: list[str]) -> Iterator[Document]:
    """A txt file: one document."""
    text = _decode(path.read_bytes())
    if not text.strip():
        raise Unreadable("it holds no text; fill it or remove it")
    yield with_metadata(text, {}, source=source)


def read_markdown(path: Path, source: str, problems: list[str]) -> Iterator[Document]:
    """An md file: one document; the fields of its front matter become metadata."""
    fields, text, flaw = _split_front_matter(_decode(path.read_bytes()))
    if flaw:
        problems.append(f"{source}: its front matter was read as text: {flaw}.")
    if not text.strip():
        raise Unreadable("it holds no text; fill it or remove it")
    metadata, ignored = _plain_fields(fields)
    problems += _describe_ignored(source, ignored)
    yield with_metadata(text, metadata, source=source)


def read_html(path: Path, source: str, problems: list[str]) -> Iterator[Document]:
    """An html file: one document of what a reader sees, a line per block; its title becomes metadata."""
    from bs4 import BeautifulSoup
    from bs4.exceptions import ParserRejectedMarkup

    try:
        page = BeautifulSoup(path.read_bytes(), "html.parser")
    except ParserRejectedMarkup as error:
        why = str(error).strip().splitlines()[-1].partition(": ")[2]
        raise Unreadable(
            f"it is not sound html ({_without_quotes(why)}); repair it or save it as text"
        ) from None
    if page.contains_replacement_characters:
        raise Unreadable("its bytes do not fit its declared encoding; save it as UTF-8")
    title = " ".join(page.title.get_text().split()) if page.title else ""
    text = _visible_text(page)
    if not text:
        raise Unreadable("it holds no text; fill it or remove it")
    yield with_metadata(text, {"title": title} if title else {}, source=source)


def read_pdf(path: Path, source: str, problems: list[str]) -> Iterator[Document]:
    """A pdf file: one document a page that has text; `page` counts from 1."""
    reader = _open_pdf(path)
    num_read = 0
    for number in range(1, _num_pages(reader) + 1):
        try:
            page = reader.pages[number - 1]
            text = "\n".join([page.extract_text(), *_filled_in(page)]).strip("\n")
        except MemoryError:
            raise
        except Exception as error:  # pypdf raises many kinds on damaged pages; the others are still good
            problems.append(
                f"{source} page {number} was left out: it is damaged ({_brief(error)}); print it to pdf again."
            )
            continue
        if text.strip():
            num_read += 1
            yield with_metadata(text, {}, source=source, page=number)
    if num_read == 0:
        raise Unreadable("none of its pages holds text (they may be images); run OCR on it first")


def read_jsonl(path: Path, source: str, problems: list[str]) -> Iterator[Document]:
    """A jsonl file: a document a line, {"text": string, "metadata": object, other fields}; text alone will do."""
    bad: list[str] = []
    ignored: dict[str, None] = {}
    num_read = 0
    for number, line in enumerate(_decode(path.read_bytes()).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            text, metadata, others = _record(line)
        except ValueError as error:
            bad.append(f"{source} line {number} was left out: {error}.")
            continue
        num_read += 1
        plain, names = _plain_fields(others)
        ignored.update(dict.fromkeys(names))
        yield with_metadata(text, plain | metadata, source=source, line=number)
    problems.extend(bad[:MAX_LINE_PROBLEMS])
    problems.extend(_describe_ignored(source, list(ignored)))
    if len(bad) > MAX_LINE_PROBLEMS:
        more = len(bad) - MAX_LINE_PROBLEMS
        problems.append(f"{source}: {more} more malformed lines were left out; repair them in the same way.")
    if num_read == 0:
        raise Unreadable('it has no usable line; write one {"text": "...", "metadata": {...}} a line')


_BY_ENDING: dict[str, Reader] = {
    ".txt": read_text,
    ".md": read_markdown,
    ".html": read_html,
    ".pdf": read_pdf,
    ".jsonl": read_jsonl,
}

READERS = {ending: _BY_ENDING[kind.endings[0]] for kind in FILE_KINDS for ending in kind.endings}
"""Reader by file ending, lower case: one for each row of the table of kinds."""


def _decode(data: bytes) -> str:
    """The text of UTF-8 bytes, byte-order mark removed and line ends unified; Unreadable if it is none."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        seen = f"byte 0x{data[error.start]:02x} at offset {error.start}"
        raise Unreadable(f"it is not UTF-8 text ({seen}); save it as UTF-8") from None
    if "\0" in text:
        raise Unreadable(f"it is not text (a zero byte at offset {data.index(0)}); remove it or convert it")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _visible_text(page: BeautifulSoup) -> str:
    """The text that a browser shows: a line per block, a tab between cells, white space collapsed but in `pre`."""
    lines = [_collapse(line) for line in "".join(_shown(page)).split("\n")]
    return "\n".join(line for line in lines if line.strip())


def _collapse(line: str) -> str:
    """White space as a browser shows it; what is kept of `pre` comes as it is."""
    cells = (" ".join(cell.split()) for cell in line.split("\t"))
    return "\t".join(cells).strip().translate(_WRITTEN)


_KEEP = str.maketrans(" \t", "\ue000\ue001", "\r")
"""Private characters in the place of what `pre` keeps, until all other white space is collapsed."""
_WRITTEN = str.maketrans("\ue000\ue001", " \t", "\u00ad")  # a soft hyphen is not seen


def _shown(page: BeautifulSoup) -> Iterator[str]:
    """The pieces of text that a browser shows, in their order, with line breaks around blocks."""
    from bs4.element import CData, NavigableString, Tag

    hidden = _hidden_by_sheets(page)
    shown = _Cover(None)
    left: list[tuple[Any, bool, _Cover]] = [(page, False, shown)]  # what is still to come, the next one last
    while left:
        item, is_kept, cover = left.pop()
        if isinstance(item, Tag):
            if item.name in _UNSEEN:
                continue
            if cover.ends is not None and item.name in cover.ends:
                cover.ends = None
            if cover.ends is None and (id(item) in hidden or _is_hidden(item)):
                cover = _Cover(_ENDS.get(item.name, ()))
            elif cover.ends and item.name in _LISTS:
                cover = _Cover(())
            edge = "\n" if item.name in _BREAKS else ""
            is_kept = is_kept or item.name in _KEPT
            yield edge or _APART.get(item.name, "")
            yield _value(item) if cover.ends is None else ""
            left += [(edge, False, shown), *((child, is_kept, cover) for child in reversed(item.contents))]
        elif cover.ends is not None:
            continue
        elif type(item) is NavigableString and is_kept:
            yield item.translate(_KEEP)
        elif type(item) is NavigableString:  # subclasses are comments, doctypes and the like
            yield " ".join(f"|{item}|".split())[1:-1]  # the bars keep one space at either end
        elif type(item) in (str, CData):
            yield item


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
    """Whether an element says of itself that it is not shown."""
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


def _open_pdf(path: Path) -> PdfReader:
    """The pdf, decrypted if its password is empty; Unreadable if it is locked or damaged."""
    from pypdf import PdfReader
    from pypdf.errors import DependencyError

    logging.getLogger("pypdf").addHandler(logging.NullHandler())  # its warnings would go to stderr
    try:
        reader = PdfReader(path)
        is_locked = reader.is_encrypted and not reader.decrypt("")
    except (OSError, MemoryError):
        raise
    except DependencyError:
        raise Unreadable("it is encrypted; save it without a password") from None
    except Exception as error:  # pypdf raises many kinds on damaged files
        raise Unreadable(f"it is not a sound pdf ({_brief(error)}); print it to pdf again") from None
    if is_locked:
        raise Unreadable("it is encrypted; save it without a password")
    return reader


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


def _num_pages(reader: PdfReader) -> int:
    """Number of pages; Unreadable if the page tree is damaged."""
    try:
        return len(reader.pages)
    except MemoryError:
        raise
    except Exception as error:  # as above
        raise Unreadable(f"it is not a sound pdf ({_brief(error)}); print it to pdf again") from None


def _record(line: str) -> tuple[str, dict[str, object], dict[str, object]]:
    """Text, metadata and other fields of a jsonl line; ValueError whose text says what is wrong and the remedy."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not valid JSON ({_brief(error)}); repair it") from None
    if is_too_deep(record):
        raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep; flatten it")
    text = record.get("text") if isinstance(record, dict) else None
    if not isinstance(text, str) or not text.strip():
        raise ValueError('it has no "text" with a non-empty string; add one')
    metadata = record.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise ValueError(f'its "metadata" is {type(metadata).__name__}, not an object; write {{...}}')
    others = {key: value for key, value in record.items() if key not in ("text", "metadata")}
    return text, metadata, others


def _brief(error: BaseException) -> str:
    """First line of an error's text, without what it quotes of the file and without a final full stop."""
    lines = str(error).strip().splitlines()
    return _without_quotes(lines[0] if lines else type(error).__name__).rstrip(" .")


# ---- metadata that a file brings along -----------------------------------------------------------------------


def _plain_fields(fields: Mapping[Any, Any]) -> tuple[dict[str, Any], list[str]]:
    """The fields whose values can be metadata (dates as texts), and the names of the others; empty ones are neither."""
    plain: dict[str, Any] = {}
    ignored: list[str] = []
    for key, value in fields.items():
        if value is None:
            continue
        if _is_plain(value) or (isinstance(value, list) and all(map(_is_plain, value))):
            plain[str(key)] = (
                [_as_text(item) for item in value] if isinstance(value, list) else _as_text(value)
            )
        else:
            ignored.append(str(key))
    return plain, ignored


def _describe_ignored(source: str, names: list[str]) -> list[str]:
    """One sentence about the ignored fields of a file; none if there are none."""
    if not names:
        return []
    shown = ", ".join(name[:MAX_NAME_CHARS] for name in names[:MAX_NAMED]) + (
        ", ..." if len(names) > MAX_NAMED else ""
    )
    were, values = (
        ("field {} was", "its value is") if len(names) == 1 else ("fields {} were", "their values are")
    )
    return [
        f"{source}: the {were.format(shown)} ignored: {values} no text, number, truth value, date or list of these; "
        "flatten what should be metadata."
    ]


def _split_front_matter(text: str) -> tuple[dict[str, Any], str, str]:
    """The fields of a text's YAML front matter, the text behind it, and why it is none although it looks like it, with
    the remedy.

    Without front matter: no fields, the whole text.
    """
    match = _FRONT_MATTER.match(text)
    if match is None:
        return {}, text, ""
    import yaml

    loader = _loader()
    try:
        if _is_yaml_too_deep(yaml.parse(match[1], loader)):
            return {}, text, f"it is nested more than {MAX_DEPTH} levels deep; flatten it"
        fields = yaml.load(match[1], loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        return {}, text, f"it is not valid YAML ({_brief_yaml(error)}); repair it"
    if not isinstance(fields, dict):  # a line across the page
        return {}, text, ""
    return fields, text[match.end() :], ""


@cache
def _loader() -> Any:
    """A YAML loader that keeps values as they are written: a plain value is a number or truth value only where that is
    written back alike. Else `NO` would be false, `10:30` 630 and `012` 10, as YAML 1.1 has it.
    """
    import yaml

    loader: Any = type(
        "Loader", (getattr(yaml, "CSafeLoader", yaml.SafeLoader),), {"yaml_implicit_resolvers": {}}
    )
    for kind, pattern, first in (
        ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
        ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
        ("int", r"0|-?[1-9][0-9]{0,17}", list("-0123456789")),
        ("float", r"-?(?:0|[1-9][0-9]{0,7})\.[0-9]{0,7}[1-9]", list("-0123456789")),
        ("merge", r"<<", ["<"]),
    ):
        loader.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", re.compile(f"^(?:{pattern})$"), first)
    return loader


def _without_quotes(text: str) -> str:
    """An error's text, at most 100 characters, in which "..." stands for what it quotes of a file; a sign or two, as
    in "expected ','", stay.
    """
    return _QUOTES.sub(lambda quoted: quoted[0] if quoted[1] else "...", text)[:100]


def _is_yaml_too_deep(events: Iterable[Any]) -> bool:
    """Whether YAML is nested too deeply to be loaded: what loads it recurses in C, what parses it into events does
    not.
    """
    import yaml

    depth = 0
    for event in events:
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            return True
    return False


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float | date)  # a truth value is an int, a time of day a date


def _as_text(value: Any) -> Any:
    return value.isoformat() if isinstance(value, date) else value


def _brief_yaml(error: Exception) -> str:
    """The problem and its place, in a few words."""
    problem, mark = getattr(error, "problem", None), getattr(error, "problem_mark", None)
    where = f" in line {mark.line + 2}" if mark is not None else ""
    return _without_quotes(f"{problem or error}") + where
