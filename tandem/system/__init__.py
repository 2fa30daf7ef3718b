"""This machine: folders, private files, addresses, threads."""
