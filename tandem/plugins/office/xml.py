"""XML within the archives of office documents, whatever its namespaces."""

from __future__ import annotations

import re
from io import BytesIO
from xml.etree import ElementTree
from zipfile import ZipFile

from tandem.retrieval.readers import Unreadable

_ENTITY = re.compile(rb"<!ENTITY", re.IGNORECASE)


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
