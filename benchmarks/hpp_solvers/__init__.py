"""Measures speed and quality of the solvers of kind "hpp"."""
