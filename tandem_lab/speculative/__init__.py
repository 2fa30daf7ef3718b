"""How fast edge-cloud speculative decoding is over the test network, beside what it competes with."""
