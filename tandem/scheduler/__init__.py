"""The choice of the aggregator: pure functions of estimates, and the placement policies made of them."""
