"""Containers as places to run commands: connections to engines, limits, networks, folders and cleanup."""
