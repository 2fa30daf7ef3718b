"""Tandem on the test network: a two-node Ray cluster across it, and what was measured on the link meanwhile.

Knows the network, Ray, asyncio and the clock. Nothing else of Tandem but the command line uses it.
"""
