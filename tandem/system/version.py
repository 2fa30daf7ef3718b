"""The version of Tandem, which the package, its commands and its wheel name."""

__version__ = "0.2.0"
