"""The engine that computes GGUF files with llama.cpp (package xllamacpp)."""
