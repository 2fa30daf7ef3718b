"""Who aggregates. Pure: no clock, no Ray."""
