"""What a question may only use if its parties have loaded it when they started: codecs and policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tandem.errors import ConfigError
from tandem.extensions import CodecConfig, is_extension
from tandem.presets import settings_of_preset
from tandem.protocol.spec import SessionSpec
from tandem.topology import at_start


def check_policies(spec: SessionSpec, described: Mapping[Any, Mapping[str, Any]]) -> None:
    """Policies of one's own are those that the parties report. described: by party. Raises ConfigError."""
    _check_placement(spec, described)
    _check_length_policy(spec, described)


def check_codec(preset: str | None, described: Mapping[Any, Mapping[str, Any]]) -> None:
    """The codec of a preset is the one that the parties report: a question cannot change it. Raises ConfigError."""
    if preset is None or "codec" not in settings_of_preset(preset):
        return
    from tandem.codecs import codec_of

    wanted = codec_of(CodecConfig(**settings_of_preset(preset)["codec"])).fingerprint()
    loaded = next(iter(described.values())).get("codec", "")
    if loaded != wanted:
        raise ConfigError(
            f"The preset {preset!r} needs the codec {wanted}, but the parties have loaded {loaded or 'none'}; start "
            f"them again with preset={preset}."
        )


def _check_placement(spec: SessionSpec, described: Mapping[Any, Mapping[str, Any]]) -> None:
    """A policy of one's own is one that both parties have loaded; `described` tells which."""
    for party in spec.parties if is_extension(spec.placement) else ():
        loaded = described[party].get("policy", "")
        if loaded.partition("(")[0] != spec.placement:
            raise ConfigError(
                f"The {party} has not loaded the placement policy {spec.placement!r} (it has {loaded or 'none'}); name "
                "it as decoding.placement in the settings of both parties and start them again."
            )


def _check_length_policy(spec: SessionSpec, described: Mapping[Any, Mapping[str, Any]]) -> None:
    """A length policy of one's own is the one that the drafter has loaded."""
    drafter = spec.roles.drafters[0]
    is_needed = spec.adapts_lengths(drafter) and is_extension(spec.length_policy)
    loaded = described[drafter].get("length_policy", "") if is_needed else ""
    if is_needed and loaded != spec.length_policy:
        raise ConfigError(
            f"{at_start(drafter)} has not loaded the length policy {spec.length_policy!r} "
            f"(it has {loaded or 'none'}); "
            "name it as decoding.length_policy in its settings and start it again."
        )
