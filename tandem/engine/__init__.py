"""The language model of one party: from documents and a question to distributions, and from tokens to text."""
