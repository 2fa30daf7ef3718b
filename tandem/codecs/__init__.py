"""Codecs: how distributions are compressed before a token is drawn. Those of papers are plugins."""

from __future__ import annotations

from typing import cast

from tandem.codecs.base import MEMBERS, Codec, CodecSession, CodecStates, StatelessCodec
from tandem.codecs.top_p import TopP
from tandem.codecs.votes import RaceLists
from tandem.config.extensions import CodecConfig, call, check_has

__all__ = [
    "Codec",
    "CodecSession",
    "CodecStates",
    "RaceLists",
    "StatelessCodec",
    "TopP",
    "codec_of",
]


def codec_of(config: CodecConfig, where: str = "This process") -> Codec:
    """The codec of whole distributions that the section `[codec]` names.

    where: the process that imports it, in words. Raises ConfigError.
    """
    codec = call("codec.name", config.address, config.whole_parameters, "codec.parameters", where)
    check_has(codec, MEMBERS, "codec.name", config.address, "codec")
    return cast(Codec, codec)
