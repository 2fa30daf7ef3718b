"""This machine: folders, private files, addresses, processes; and the version of Tandem."""

__version__ = "0.2.0"
