"""Who aggregates: pure functions of estimates, and the placement policies made of them."""
