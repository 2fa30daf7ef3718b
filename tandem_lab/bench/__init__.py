"""One benchmark over the test network, with three suites: DRAGON's figures, speculative and federated decoding."""
