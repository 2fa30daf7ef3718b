"""The language model of one side: from documents and a question to next-token laws, and from tokens to text.

Importing this package is free. `detokenizer`, `template` and `weights` need neither torch nor transformers;
`mixing` touches torch only when it is called; `engine` needs both. Nothing here knows of the other side,
of the link, of Ray or of time.
"""
