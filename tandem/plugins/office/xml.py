"""XML within the archives of office documents, whatever its namespaces."""

from __future__ import annotations

import re
from collections import Counter
from io import BytesIO
from xml.etree import ElementTree
from zipfile import ZipFile

from tandem.retrieval.readers import Unreadable, listed

_ENTITY = re.compile(rb"<!ENTITY", re.IGNORECASE)
MAX_NAMED = 3
"""Hidden sheets that a sentence names."""
DROPPED = {
    "chart": "chart",
    "oMath": "equation",
    "relIds": "diagram",
    "OLEObject": "embedded object",
    "oleObj": "embedded object",
    "control": "control",
    "subDoc": "linked document",
}
"""Elements whose text is in other parts, which are not read -> what they are."""


def xml(archive: ZipFile, name: str) -> ElementTree.Element:
    """The root of a part, which may not declare entities: they can grow without bound, and lead out of the file."""
    data = archive.read(name)
    if _ENTITY.search(data.replace(b"\0", b"")):
        raise Unreadable("it declares XML entities, as no program for offices does; save it again")
    return ElementTree.parse(BytesIO(data)).getroot()


def tag(node: ElementTree.Element) -> str:
    """The name of an element without its namespace."""
    return node.tag.rpartition("}")[2]


def attribute(node: ElementTree.Element, name: str) -> str:
    """The value of an attribute, "" for none."""
    return next((value for key, value in node.attrib.items() if key.rpartition("}")[2] == name), "")


def describe_dropped(source: str, dropped: Counter[str]) -> list[str]:
    """What to say of things of these names that are not read."""
    things = [f"{count} {name}{'s' * (count > 1)}" for name, count in dropped.items() if count]
    were = "was" if dropped.total() == 1 else "were"
    return [f"{source}: {', '.join(things)} {were} left out; write what is to be read as text."] * bool(
        things
    )


def describe_hidden(source: str, names: list[str]) -> list[str]:
    """What to say of hidden sheets of these names."""
    were = "sheet was" if len(names) == 1 else "sheets were"
    shown = listed(names, MAX_NAMED)
    return [f"{source}: {len(names)} hidden {were} left out ({shown}); show what should be read."] * bool(
        names
    )
