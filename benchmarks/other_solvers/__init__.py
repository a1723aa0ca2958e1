"""Measures speed and quality of the solvers of kinds deft, split, d2ft and opfence, one file per kind."""
