"""The one registry of what hangs on the core, by kind and name.

The core imports no plugin, and a plugin no other one: whoever needs one asks here what a name stands for. Tandem's own
are in a table; those of other packages are entry points of the group `tandem.plugins` whose name is KIND.NAME:

    [project.entry-points."tandem.plugins"]
    "codec.halves" = "my_package.codecs:Halves"

Both are found, named in settings and checked in the same way. docs/how-to/extending.md says what each kind is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from operator import attrgetter
from typing import Any, Literal

from tandem.errors import ConfigError, did_you_mean, first_line

Kind = Literal[
    "engine",
    "model_format",
    "model_store",
    "conversion",
    "reader",
    "store",
    "embedder",
    "scorer",
    "codec",
    "grammar",
    "policy",
    "watcher",
    "command",
    "route",
    "running",
    "runtime",
]
GROUP = "tandem.plugins"
ADDRESS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""MODULE:ATTRIBUTE."""
OWN: Mapping[Kind, Mapping[str, str]] = {
    "engine": {"llama": "tandem.plugins.llama.runner:load", "torch": "tandem.plugins.torch.runner:load"},
    "model_format": {"gguf": "tandem.plugins.gguf:Gguf"},
    "model_store": {"ollama": "tandem.plugins.gguf.header:find_in_ollama"},
    "conversion": {"torch": "tandem.plugins.torch.conversion:describe"},
    "reader": {"office": "tandem.plugins.office:KINDS"},
    "store": {"langchain": "tandem.plugins.clients.stores:open_retriever"},
    "embedder": {
        "local": "tandem.plugins.embedders:Embedder.load",
        "langchain": "tandem.plugins.clients.stores:open_embedder",
    },
    "scorer": {"local": "tandem.plugins.embedders:CrossEncoderScorer.load"},
    "codec": {
        "top_p": "tandem.codecs.top_p:TopP",
        "top_k": "tandem.plugins.papers.codecs:TopK",
        "k_sqs": "tandem.plugins.papers.codecs:KSqs",
        "c_sqs": "tandem.plugins.papers.codecs:CSqs",
        "lattice": "tandem.plugins.papers.codecs:Lattice",
    },
    "grammar": {"llguidance": "tandem.plugins.grammars.following:open_grammar"},
    "policy": {
        "best": "tandem.plugins.papers.lengths:BestLength",
        "last_accepted": "tandem.plugins.papers.lengths:LastAccepted",
        "double_dqn": "tandem.plugins.papers.lengths:DoubleDqn",
    },
    "watcher": {
        "here": "tandem.plugins.watching:follow_here",
        "beside": "tandem.plugins.watching:watch_beside",
    },
    "command": {
        "init": "tandem.plugins.setup.init:init",
        "doctor": "tandem.plugins.setup.doctor:doctor",
        "status": "tandem.plugins.setup.status:status",
        "serve": "tandem.plugins.server.serve:serve",
        "device": "tandem.plugins.server.serve:device",
        "mcp": "tandem.plugins.server.serve:mcp",
        "up": "tandem.plugins.ray.command:up",
        "down": "tandem.plugins.ray.command:down",
        "model": "tandem.plugins.papers.commands:app",
    },
    "route": {
        "openai": "tandem.plugins.server.openai:router",
        "typed_events": "tandem.plugins.server.typed_events:router",
        "documents": "tandem.plugins.server.documents:router",
    },
    "running": {"device": "tandem.plugins.server.client:RunningDevice"},
    "runtime": {"ray": "tandem.plugins.ray:RayRuntime"},
}
"""Kind -> name -> the address of Tandem's own."""


def names(kind: Kind) -> list[str]:
    """Every name of a kind: Tandem's own, then other packages'."""
    return list(_addresses(kind))


def has(kind: Kind, name: str) -> bool:
    """Whether a name of a kind is known; nothing is imported."""
    return name in OWN[kind] or name in _addresses(kind)


def address_of(kind: Kind, name: str) -> str:
    """MODULE:ATTRIBUTE of a name, or the name itself if it is an address. Raises ConfigError for an unknown name."""
    if ADDRESS.fullmatch(name):
        return name
    if name in OWN[kind]:  # without a look at the installed packages
        return OWN[kind][name]
    known = _addresses(kind)
    if name not in known:
        raise ConfigError(f"There is no {kind} {name!r:.60}; {did_you_mean(name, known)}")
    return known[name]


def find(kind: Kind, name: str) -> Any:
    """What a name or address of a kind stands for. Raises ConfigError for an unknown name, and where another package's
    cannot be imported; an own one raises what importing it raises."""
    address = address_of(kind, name)
    try:
        return load(address)
    except Exception as error:  # a stranger's module may raise anything
        if name in OWN[kind]:
            raise
        raise ConfigError(
            f"The {kind} {name!r:.60} ({address}) cannot be imported ({type(error).__name__}: {first_line(error)}); "
            "repair or uninstall its package."
        ) from error


def split(kind: Kind, setting: str) -> tuple[str, str] | None:
    """The plugin that "NAME:REST" is for, and REST; None if the part before the colon is the name of none."""
    name, colon, rest = setting.partition(":")
    return (name, rest) if colon and has(kind, name) else None


def load(address: str) -> Any:
    """The attribute of a module that MODULE:ATTRIBUTE names."""
    module, _, attribute = address.partition(":")
    return attrgetter(attribute)(import_module(module))


def _addresses(kind: Kind) -> dict[str, str]:
    """Tandem's own names come first and cannot be taken by another package."""
    prefix = f"{kind}."
    others = {
        point.name.removeprefix(prefix): point.value
        for point in _installed()
        if point.name.startswith(prefix)
    }
    return {**OWN[kind], **{name: value for name, value in others.items() if name not in OWN[kind]}}


@cache
def _installed() -> tuple[EntryPoint, ...]:
    """Looked for once: it reads the record of every installed package."""
    return tuple(entry_points(group=GROUP))
