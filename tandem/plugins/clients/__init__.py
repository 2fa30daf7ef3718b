"""Tandem as the model of other frameworks, in their own classes and without HTTP."""
