"""The laboratory: simulation, test network, benchmarks, evaluation.

The product never imports it.
"""
