"""The protocol as plain state machines: ballots, commit and rollback, resend, resync, placement.

Each machine takes a message and the time and returns what to send. The actors and the virtual-clock driver run these
same classes.
"""
