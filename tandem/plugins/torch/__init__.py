"""Models of Hugging Face on PyTorch: the engine that computes any of them, on processors and graphics cards."""
