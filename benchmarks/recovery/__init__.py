"""Measures what the loss of a device costs."""
