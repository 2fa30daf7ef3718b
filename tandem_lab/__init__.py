"""The laboratory: simulation, test network, benchmarks, evaluation, timelines, training.

The product never imports it.
"""
