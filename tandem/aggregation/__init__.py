"""Distributions and draft rules: everything that decides which token is committed.

Pure functions of distributions, weights, seeds and steps.
"""
