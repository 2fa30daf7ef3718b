"""The protocol as plain state machines: pairing, commit and rollback, resend, resync, placement.

Each machine takes a message and the time and returns what to send; it knows nothing of Ray, sockets or clocks.
The actors and the virtual-clock driver run these same classes.
"""
