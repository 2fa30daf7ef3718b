"""Grammars that answers follow, by llguidance."""
