"""What a side knows of speed: decode times of both sides, round trips, acceptance. Pure: no clock, no Ray."""
