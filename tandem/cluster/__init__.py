"""Ray nodes as processes: starting, joining and stopping them. Imports no ray: it runs the `ray` program."""
