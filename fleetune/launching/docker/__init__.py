"""Containers as places to run commands: engines, limits, networks, and what is left when a process is killed."""
