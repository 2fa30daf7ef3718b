"""Drafters made from a target model: what they are built of, what they learn from, and how."""
