"""The Python interface: ask, stream, many questions at once."""
