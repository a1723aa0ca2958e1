"""What a server imports before it forks workers."""

from fleetune.launching import MODEL_MODULES

WORKER_MODULES = (*MODEL_MODULES, "fleetune.training.worker_holdings", "fleetune.training.measurements")
"""All that `fleetune.training.worker` imports, but not itself, since it is run."""
