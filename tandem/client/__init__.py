"""What people call from Python: ask, stream, resume, many questions at once."""
