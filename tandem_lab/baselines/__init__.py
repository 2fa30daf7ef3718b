"""The systems that Tandem is compared with, on actors of their own.

Subclasses of the product's actors add what only an experiment needs: texts that cross the link, answers that
are kept with their distributions, padded decode times, delayed frames, random placement. `launch` starts a cluster with
them, `Baselines` talks to them.
"""
