"""Measures speed and quality of the planners of kinds deft, split, d2ft and opfence, one file per kind."""
