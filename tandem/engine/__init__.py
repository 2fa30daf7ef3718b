"""The language model of one party: from documents and a question to next-token distributions, from tokens to text.

Importing this package is free. `tokenizer` and `prompt` need neither PyTorch nor transformers; `model` and
`row_mixture` import them when they are called; the rest needs both.
"""
