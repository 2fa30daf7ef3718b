"""The laboratory: simulation, test network, benchmarks, evaluation, timelines.

The product never imports it.
"""
