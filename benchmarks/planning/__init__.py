"""Measures speed and quality of the planners of kind "hpp"."""
