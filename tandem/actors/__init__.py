"""The actors of a party, and what they load. The same classes run in one process and on Ray."""
