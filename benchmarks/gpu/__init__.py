"""Measures training on a GPU: beside a plain PyTorch loop, and beside its forecasts."""
