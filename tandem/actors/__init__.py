"""The Ray actors of both sides. The only package that imports ray; each actor is a thin shell around a host class."""
