"""Drivers without processes: the protocol's own state machines under a virtual clock."""
