"""How distributions are compressed before a token is drawn."""
