"""How distributions are compressed before a token is drawn."""

from tandem.codecs.base import Codec, make_codec, register
from tandem.codecs.top_p import TopP

__all__ = ["Codec", "TopP", "make_codec", "register"]
