"""The pipeline as a service of this machine: `fleetune up` and `fleetune down`.

A keeper process holds a lock of the store, starts Prefect's server and a worker as children, and starts them again when
they end. The server also shows the store's files over HTTP. Everything listens on loopback, and asks for a password.
"""
