"""Writes the generated parts of the documentation: `python docs/generate.py`, or `--check` to compare only.

Tables of messages come from `tandem.messages`, of settings from `tandem.config`, command-line pages from the
command line itself. A generated part is between two comment lines that name it; what is around it is written by hand.
Imports neither ray nor torch.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import inspect
import io
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_type_hints
from unittest import mock

import numpy as np

from tandem import messages
from tandem.cli import main
from tandem.client.request import QueryOptions
from tandem.codecs.top_p import TopP
from tandem.config import files
from tandem.config.checks import Setting, as_toml, settings_of
from tandem.config.files import walk
from tandem.config.parties import WorkerConfig
from tandem.config.schema import Config
from tandem.protocol.log import Prefix
from tandem.system import file_kinds

DOCS = Path(__file__).parent
EXAMPLE = DOCS.parent / "tandem.example.toml"
HELP_COLUMNS = "100"
OPTIONS = re.compile("options|arguments", re.IGNORECASE)

LINK_BODIES = messages.registry.body_classes
WIRE_BYTES = {
    "Version": "1",
    "Varint": "1 to 10",
    "Float64": "8",
    "UInt32": "4",
    "Digest": "8",
    "PartyIndex": "1",
    "Flag": "1",
    "Failure": "1 (code) + 1 (option) + seconds (Varint, at most 3600)",
    "Blob": "length (Varint) + bytes",
    "Marks": "none where it is empty, else length (Varint) + 3 each, 1 to 256 of them",
    "Text": "length (Varint) + UTF-8",
    "Line": "as Text; read with U+FFFD for each control character",
    "Varints": "count (Varint) + Varint each",
    "Blobs": "count (Varint) + Blob each",
    "Float32s": "count (Varint) + 4 each",
    "Float64s": "count (Varint) + 8 each",
    "Texts": "count (Varint) + Text each",
    "Lines": "count (Varint) + Line each",
    "message": "tag + its fields",
    "messages": "count (Varint) + tag and fields each",
}
"""Size of each wire type in bytes, by the names that `tandem.messages` uses."""


# ---- messages ------------------------------------------------------------------------------------------------


def link_messages() -> str:
    """The header frame, then each body that it may hold, and what is a part of one."""
    return "\n".join(
        _message(cls) for cls in (messages.LinkFrame, *LINK_BODIES, messages.Logprobs, messages.Tail)
    ).rstrip()


def tag_of(cls: type[Any]) -> int:
    """The byte that a message begins with."""
    return messages.registry.tag(cls)


def _message(cls: type[Any]) -> str:
    """One message: heading, docstring, table of its fields in the order in which they travel."""
    doc = " ".join(inspect.cleandoc(cls.__doc__ or "").split())
    lines = [f"### {cls.__name__} (tag {tag_of(cls)})", "", _cell(doc), ""]
    comments = comments_of(cls)
    fields = dataclasses.fields(cls)
    if fields:
        lines += ["| field | wire type | bytes | meaning |", "|---|---|---|---|"]
        for field in fields:
            wire = _wire_name(str(field.type))
            meaning = _cell(comments.get(field.name) or _kinds(str(field.type)))
            lines.append(f"| `{field.name}` | {wire} | {WIRE_BYTES[wire]} | {meaning} |")
    else:
        lines.append("No fields: one byte, the tag.")
    return "\n".join([*lines, ""])


def _wire_name(annotation: str) -> str:
    if "sequence(registry.nested(" in annotation:
        return "messages"
    return "message" if "registry." in annotation else annotation


def _kinds(annotation: str) -> str:
    """Which messages a nested field may hold."""
    kinds = re.search(r"nested\((.+?)\)", annotation)
    return kinds[1] if kinds else "one of the bodies below" * ("bodies()" in annotation)


def comments_of(cls: type[Any]) -> dict[str, str]:
    """The comment behind each field in the source, of inherited ones where those stand."""
    sources = [inspect.getsource(each) for each in reversed(cls.__mro__[:-1])]
    return dict(re.findall(r"^    (\w+): [^#\n]+?  # (.+)$", "\n".join(sources), re.MULTILINE))


def frame_example() -> str:
    """A Verdict as it crosses the link, byte by byte."""
    prefix = Prefix(7, [300, 12])
    body = messages.Verdict(
        step=2,
        tokens=(1044,),
        accepted=(1, 0),
        acceptance=(messages.in_127ths(0.9), messages.in_127ths(0.6)),
        next_decider=0,
    )
    frame = messages.LinkFrame(
        session=7,
        view=0,
        number=9,
        received=(4, 5),
        committed=len(prefix),
        committed_digest=prefix.digest,
        stamp=12,
        echo=11,
        held_us=250,
        body=body,
    )
    raw = messages.encode(frame)
    head = [
        ("tag of LinkFrame", 1),
        (f"version {raw[1]}", 1),
        ("session 7", 4),
        ("view 0", 1),
        ("number 9", 1),
    ]
    head += [("received 4, 5", 3), ("committed 2", 1)]
    head += [
        ("committed_digest of tokens 300, 12", 8),
        ("stamp 12", 1),
        ("echo 11", 1),
        ("held_us 250", 2),
    ]
    tail = [
        ("tag of Verdict", 1),
        ("step 2", 1),
        ("tokens 1044", 3),
        ("accepted: the device's 1, the cloud's 0", 3),
        ("acceptance 114/127, 76/127", 3),
        ("next_decider 0: the device", 1),
        ("tail: none", 1),
    ]
    return _dump(raw, head + tail)


def codec_example() -> str:
    """The distribution [0.5, 0.31, 0.1, 0.09] through `top_p` with p = 0.8."""
    codec = TopP(0.8)
    raw = codec.encode(np.array([0.5, 0.31, 0.1, 0.09]))
    distribution = codec.decode(raw)
    weights = [int.from_bytes(raw[4 + 2 * i : 6 + 2 * i], "little") for i in range(len(distribution))]
    parts = [("plain", 1), (f"n = {len(distribution)}", 1), ("id 0", 1), ("gap 0: id 1", 1)]
    parts += [(f"weight {weight}", 2) for weight in weights]
    decoded = ", ".join(
        f"{token}: {value:.6f}"
        for token, value in zip(distribution.ids, distribution.probabilities, strict=True)
    )
    return _dump(raw, parts) + f"\n\nDecoded: {{{decoded}}}."


def _dump(raw: bytes, parts: list[tuple[str, int]]) -> str:
    """Bytes in hexadecimal with what they are, one part per line."""
    assert sum(size for _, size in parts) == len(raw), (parts, raw.hex())
    lines, position = [], 0
    for what, size in parts:
        lines.append(f"{raw[position : position + size].hex(' '):<24}  {what}")
        position += size
    return "\n".join(["```text", *lines, f"{len(raw)} bytes", "```"])


# ---- settings ------------------------------------------------------------------------------------------------


SAME_AS_DEVICE = ("cloud", "server")
"""Sections with the settings of `[device]`."""


def settings_tables() -> str:
    """One table per section; those of parties share one."""
    lines: list[str] = []
    tables = [row for row in walk(Config()) if row[0] not in SAME_AS_DEVICE]
    weight = next(setting for setting in settings_of(WorkerConfig) if setting.name == "weight")
    parties = sum(section == "device" for section, *_ in tables)
    tables.insert(parties, ("workers.NAME", weight, weight.default))
    for section, setting, default in tables:
        heading = "### Parties" if section in ("device", "workers.NAME") else f"### [{section}]"
        if heading not in lines:
            lines += ["", heading, ""]
            if heading == "### Parties":
                lines += [PARTIES, ""]
            lines += ["| key | type | default | meaning |", "|---|---|---|---|"]
        kind, value, meaning = _cell(_type_name(setting)), as_toml(default), _cell(setting.meaning)
        lines.append(f"| `{section}.{setting.name}` | {kind} | `{value}` | {meaning} |")
    return "\n".join(lines).strip()


PARTIES = """`[cloud]`, and in mode `federated` `[server]` and a section `[workers.NAME]` for each worker, have the
same settings as `[device]`. `server.num_documents` is 0 by default."""


def preset_table() -> str:
    """What each preset stands for, and its settings."""
    text = files.PRESETS_FILE.read_text("utf-8").replace("\n# ", "\n")
    found = re.findall(r"^(\w+): (.+?)\n(?=\[)", text, re.MULTILINE | re.DOTALL)
    lines = ["| preset | what it is | settings |", "|---|---|---|"]
    for name, meaning in found:
        settings = [
            f"`{section}.{key} = {as_toml(value)}`"
            for section, group in files.PRESETS[name].items()
            for key, value in group.items()
        ]
        lines.append(f"| `{name}` | {_cell(' '.join(meaning.split()))} | {_cell(', '.join(settings))} |")
    return "\n".join(lines)


def query_options() -> str:
    """What `Tandem.query` and its twins take, besides the question and the settings of one query."""
    settings = {setting.name for section, setting, _ in walk(Config()) if section in ("sampling", "decoding")}
    pattern = r'^    (\w+): [^\n]+\n    """(.+?)"""$'
    meanings = dict(re.findall(pattern, inspect.getsource(QueryOptions), re.MULTILINE))
    lines = ["| option | type | meaning |", "|---|---|---|"]
    for name, hint in get_type_hints(QueryOptions).items():
        if name not in settings:
            kind = re.sub(r"[a-z_.]+\.(?=[A-Z])", "", inspect.formatannotation(hint))
            kind = re.sub(r"^Optional\[(.+)\]$| \| None$", r"\1", kind)
            lines.append(f"| `{name}` | `{_cell(kind)}` | {_cell(meanings[name])} |")
    return "\n".join(lines)


def _type_name(setting: Setting) -> str:
    if setting.choices:
        return ", ".join(f"`{choice}`" for choice in setting.choices)
    names = {
        tuple: "text or list of texts",
        dict: "table",
        str: "text",
        int: "whole number",
        float: "number",
        bool: "true or false",
    }
    return ", ".join([names[setting.type], *_limits(setting)])


def _limits(setting: Setting) -> Iterator[str]:
    """The least and the largest value, as in ">= 0", "< 1"."""
    for limit in setting.info.metadata:
        for name, sign in (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<")):
            if (number := getattr(limit, name, None)) is not None:
                yield f"{sign} {number:g}"


# ---- the command line ----------------------------------------------------------------------------------------


def command_pages() -> str:
    """What `--help` prints for Tandem and for each of its commands, found by reading those very pages.

    Of the laboratory, which is not in the wheel, without the options; options that another command explains alike are
    only named.
    """
    pages, waiting = [], [""]
    explained: dict[str, str] = {}  # an option, with its meaning -> the first command that has it
    while waiting:
        name = waiting.pop(0)
        text = _help(name)
        shown = (
            re.sub(OPTION_LIST, "\n", text).strip()
            if name.startswith("lab ")
            else _shorten(text, name, explained)
        )
        pages.append(f"## {f'tandem {name}'.strip()}\n\n```text\n{shown}\n```")
        waiting = [f"{name} {command}".strip() for command in commands_in(text)] + waiting
    return "\n\n".join(pages)


OPTION_LIST = r"\n\nOptions:\n( .*\n?)+"


def _shorten(text: str, name: str, explained: dict[str, str]) -> str:
    """A page without the meanings of options that the page of another command has; `explained` grows."""
    head, separator, options = text.partition("\n\nOptions:\n")
    kept, named = [], dict[str, list[str]]()
    for entry in re.split(r"\n(?=  -)", options):
        words = " ".join(entry.split())
        first = explained.setdefault(words, name)
        if first == name or "--help" in entry:
            kept.append(entry)
        else:
            named.setdefault(first, []).append(words.split()[0].rstrip(","))
    also = [f"  As in `tandem {first}`: {', '.join(names)}" for first, names in named.items()]
    lines = [
        line
        for each in also
        for line in textwrap.wrap(each, 98, subsequent_indent="    ", break_on_hyphens=False)
    ]
    return f"{head}{separator}{chr(10).join([*kept, *lines])}"


def commands_in(help_page: str) -> list[str]:
    """The commands that a page of `--help` lists, below any heading but those of options and arguments."""
    _, *sections = re.split(r"^([A-Za-z ]+):$", help_page, flags=re.MULTILINE)
    lists = [
        text for title, text in zip(sections[::2], sections[1::2], strict=True) if not OPTIONS.search(title)
    ]
    return re.findall(r"^ {2,4}([a-z][a-z-]*)  ", "\n".join(lists), re.MULTILINE)


def _help(name: str) -> str:
    """In this process: one for each of some thirty pages would take a minute."""
    shown = io.StringIO()
    with (
        mock.patch.dict(os.environ, COLUMNS=HELP_COLUMNS, NO_COLOR="1"),
        contextlib.redirect_stdout(shown),
    ):
        code = main([*name.split(), "--help"])
    if code:
        raise RuntimeError(f"`tandem {name} --help` ended with {code}.")
    return shown.getvalue().strip()


def kinds_of_files() -> str:
    """A table of what `tandem index` reads."""
    lines = [
        "| files | extra | one document is | its text | its metadata |",
        "| --- | --- | --- | --- | --- |",
    ]
    for kind in file_kinds.own_kinds():
        cells = (" ".join(kind.endings), kind.extra or "-", kind.documents, kind.text, kind.metadata)
        lines.append(f"| {' | '.join(cell.replace('<', '`<').replace('>', '>`') for cell in cells)} |")
    return "\n".join(lines)


# ---- putting it together -------------------------------------------------------------------------------------

PARTS: dict[str, dict[str, Callable[[], str]]] = {
    "reference/wire-format.md": {
        "link messages": link_messages,
        "frame example": frame_example,
        "codec example": codec_example,
    },
    "reference/configuration.md": {
        "presets": preset_table,
        "settings": settings_tables,
        "options of a query": query_options,
    },
    "reference/cli.md": {"commands": command_pages},
    "reference/file-kinds.md": {
        "kinds of files": kinds_of_files,
        "common rules": lambda: textwrap.fill(file_kinds.COMMON, 120),
    },
}
"""File -> name of a generated part -> what makes it."""


def rendered(name: str) -> str:
    """A file with its generated parts made again. ValueError if it lacks the comment lines of one."""
    text = (DOCS / name).read_text("utf-8")
    for part, make in PARTS[name].items():
        begin, end = f"<!-- generated: {part} -->", f"<!-- end: {part} -->"
        before, found_begin, rest = text.partition(begin)
        _, found_end, after = rest.partition(end)
        if not (found_begin and found_end):
            raise ValueError(f"{name} must hold the lines {begin} and {end} once, in this order.")
        text = f"{before}{begin}\n\n{make()}\n\n{end}{after}"
    return text


def _cell(text: str) -> str:
    """Text that does not end a table's cell."""
    return text.replace("|", "\\|")


def _main() -> int:
    parser = argparse.ArgumentParser(description="Write the generated parts of the documentation.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file has drifted")
    is_check = parser.parse_args().check
    parts = {DOCS / name: rendered(name) for name in PARTS} | {
        EXAMPLE: f"{files.HEADER}\n\n{Config().to_toml()}"
    }
    drifted = [path for path, text in parts.items() if text != path.read_text("utf-8")]
    for path in drifted:
        name = path.relative_to(DOCS.parent)
        print(f"{name} {'has drifted; run python docs/generate.py' if is_check else 'was updated'}")
        if not is_check:
            path.write_text(parts[path], "utf-8")
    return int(is_check and bool(drifted))


if __name__ == "__main__":
    sys.exit(_main())
