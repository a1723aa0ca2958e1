"""Which model families of the installed transformers train here as in plain PyTorch, and which are refused and why."""
