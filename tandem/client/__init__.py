"""The Python interface: ask, stream, resume, many questions at once."""
