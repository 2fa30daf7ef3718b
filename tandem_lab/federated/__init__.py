"""How fast federated decoding is over the test network, and what its answers must be."""
