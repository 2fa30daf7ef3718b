"""How distributions are compressed before a token is drawn."""

from tandem.codecs.top_p import CODECS, Codec, TopP, make_codec, register_codec

__all__ = ["CODECS", "Codec", "TopP", "make_codec", "register_codec"]
