"""The language model of one party: from documents and a question to next-token distributions, from tokens to text.

Importing this package is free. PyTorch and transformers are imported by the folder `torch`, and by `model` and `gguf`
for models that it computes; llama.cpp by the folder `llama`.
"""
