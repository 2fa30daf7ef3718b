"""Settings that count only when a party starts: recorded with its node, so that a question can say what it ignores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tandem.config.checks import as_toml, settings_of
from tandem.config.files import walk
from tandem.config.parties import WorkerConfig
from tandem.config.schema import Config

SHARED = ("codec.", "retrieval.embedder", "weights.scorer")
"""Beginnings of keys that count when either party starts."""
ASKED = ("num_documents", "weight")
"""Settings of a party that travel with each question."""
ALSO_LOADED = {("codec.name", as_toml("auto")): as_toml("top_p")}
"""Values that a question can have although another one is running: a party with "auto" has loaded top_p too."""


def start_settings(config: Config, party: str) -> dict[str, str]:
    """The settings of a start that were changed from their defaults, as TOML values by key."""
    defaults = _defaults(config, party)
    return {key: value for key, value in _values(config, party).items() if value != defaults[key]}


def explain_ignored(config: Config, started: Iterable[tuple[str, Mapping[str, str]]]) -> str | None:
    """Name the settings that running parties were started without; None if there is nothing.

    started: each party with its `start_settings`.
    """
    ignored: dict[str, str] = {}
    for party, settings in started:
        defaults = _defaults(config, party)
        for key, value in start_settings(config, party).items():
            running = settings.get(key, defaults[key])
            if value not in (running, ALSO_LOADED.get((key, running))):
                ignored[key] = running
    if not ignored:
        return None
    listed = ", ".join(f"{key} = {value}" for key, value in ignored.items())
    return f"settings: what runs here was started with {listed}; for yours, use --fresh or start it again with them"


def _defaults(config: Config, party: str) -> dict[str, str]:
    defaults = _values(Config().with_names(), party)
    if party in config.workers:
        own = WorkerConfig()
        defaults |= {
            f"workers.{party}.{setting.name}": as_toml(getattr(own, setting.name))
            for setting in settings_of(WorkerConfig)
        }
    return defaults


def _values(config: Config, party: str) -> dict[str, str]:
    section = f"workers.{party}" if party in config.workers else party
    every = {f"{name}.{setting.name}": as_toml(value) for name, setting, value in walk(config)}
    asked = {f"{section}.{name}" for name in ASKED}
    return {
        key: value
        for key, value in every.items()
        if key.startswith((f"{section}.", *SHARED)) and key not in asked
    }
