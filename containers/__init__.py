"""Container engines and images: starts an engine on this machine, and builds the images that stages run in.

`make engine` runs engine.py and `make images` runs images.py; `fleetune doctor` uses engine_api.py, images.py and
machine.py. Everything here needs the standard library only: an engine is started before anything is installed.
"""
