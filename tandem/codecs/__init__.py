"""How distributions are compressed before a token is drawn."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from tandem.codecs.base import Codec, make_codec, parameters_of, register
from tandem.codecs.top_p import TopP

if TYPE_CHECKING:
    from tandem.config import CodecConfig

__all__ = ["Codec", "TopP", "codec_of", "make_codec", "register"]


def codec_of(config: CodecConfig) -> Codec:
    """The codec that the section `[codec]` names, with those of its other entries that it knows. Raises ConfigError."""
    known = parameters_of(config.name)
    return make_codec(config.name, **{key: value for key, value in asdict(config).items() if key in known})
