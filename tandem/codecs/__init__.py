"""How distributions are compressed before a token is drawn."""

from __future__ import annotations

from dataclasses import asdict
from typing import cast

from tandem.codecs.base import (
    MEMBERS,
    Codec,
    CodecSession,
    CodecStates,
    StatelessCodec,
    make_codec,
    parameters_of,
    register,
)
from tandem.codecs.c_sqs import CSqs
from tandem.codecs.k_sqs import KSqs
from tandem.codecs.lattice import Lattice
from tandem.codecs.race_lists import RaceLists
from tandem.codecs.top_k import TopK
from tandem.codecs.top_p import TopP
from tandem.config.extensions import CodecConfig, call, check_has, is_extension

__all__ = [
    "CSqs",
    "Codec",
    "CodecSession",
    "CodecStates",
    "KSqs",
    "Lattice",
    "RaceLists",
    "StatelessCodec",
    "TopK",
    "TopP",
    "codec_of",
    "make_codec",
    "register",
]


def codec_of(config: CodecConfig, where: str = "This process") -> Codec:
    """The codec of whole distributions that the section `[codec]` names; "auto" names top_p.

    where: the process that imports one's own, in words. Raises ConfigError.
    """
    if is_extension(config.name):
        codec = call("codec.name", config.name, config.parameters, "codec.parameters", where)
        check_has(codec, MEMBERS, "codec.name", config.name, "codec")
        return cast(Codec, codec)
    name = TopP.name if config.name == "auto" else config.name
    known = parameters_of(name)
    return make_codec(name, **{key: value for key, value in asdict(config).items() if key in known})
