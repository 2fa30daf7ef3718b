"""Measured speed: decode times of both parties, round trips, acceptance. Numbers in, numbers out."""
