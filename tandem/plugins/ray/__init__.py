"""Ray nodes as processes, the registry of those that run, credentials, and what starts a whole cluster."""
