"""Trains the bundled model and writes the bundled corpora."""
