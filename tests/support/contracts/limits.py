"""Texts beyond the limits of what is read."""

DEEP = ["[" * depth + "]" * depth for depth in (101, 400, 990, 200_000)]
BEYOND = ["1e999", "-1.5e400", "1" * 5000, *DEEP]
"""Numbers without end, and depths without floor."""
