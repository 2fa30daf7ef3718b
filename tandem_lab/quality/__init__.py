"""How good the answers are: both sides in one process, on the same state machines, models and indexes."""
