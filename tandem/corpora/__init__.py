"""Text that Tandem brings along: the generator of the demonstration family and the bundled corpora.

Knows nothing of models, indexes or Ray.
"""
