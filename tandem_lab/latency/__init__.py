"""How long answers take: the systems of DRAGON 7.2, what a benchmark measures of them, and what was promised."""
