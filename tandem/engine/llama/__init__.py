"""The engine that computes GGUF files with llama.cpp (package llama-cpp-python)."""
