"""How distributions are compressed before a token is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandem.codecs.base import Codec, make_codec, register
from tandem.codecs.top_p import TopP

if TYPE_CHECKING:
    from tandem.config import CodecConfig

__all__ = ["Codec", "TopP", "codec_of", "make_codec", "register"]


def codec_of(config: CodecConfig) -> Codec:
    """The codec that the settings name; ConfigError if there is none, or a parameter is out of range."""
    return make_codec(config.name, p=config.p)
