"""Settings: what they are, where they come from, how they are checked."""
