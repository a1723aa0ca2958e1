"""Engines and images: what puts a container engine on a machine, and the stages into containers.

`make engine` (engine.py), `make images` (images.py); answers.py and shaping.py also serve `fleetune doctor`. All of it
uses the standard library only: an engine is started before anything is installed.

May import: fleetune.errors.
"""
