"""Environment of processes that use the server of a service: its server, its worker, and registrations; the options of
these."""

import os
from urllib.parse import urlsplit

from flows.prefect_server import CLIENT_SECRET, NO_FILES, QUIET
from flows.service_files import ServiceFiles, ServiceRecord
from flows.store_root import ROOT_VARIABLE

SETTINGS = {
    **QUIET,
    **NO_FILES,
    "PREFECT_UI_API_URL": "/api",  # whatever name of this machine the browser uses
    "PREFECT_RUNNER_POLL_FREQUENCY": "2",
    "PREFECT_WORKER_QUERY_SECONDS": "0.1",  # it asks every other second: see worker.py
    "PREFECT_WORKER_PREFETCH_SECONDS": "5",
    "PREFECT_CLIENT_MAX_RETRIES": "10",  # a locked SQLite file answers 503
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "flows.service.leases",
}
"""A run holds a lease of its deployment's one slot, renews it every 225 s, and is ended where it cannot."""

WORKER_LIVES, RUNS_ONLY, IN_FOLDER = "--worker-lives", "--runs-only", "--in"
"""Options of a registration: the worker reports what it ends; no deployment is registered; the folder of configs, which
follows."""


def client_environment(files: ServiceFiles, service: ServiceRecord, auth_string: str) -> dict[str, str]:
    """Variables that make Prefect's clients use `service` and keep their files in its store; what the user has set of
    SETTINGS stays."""
    given = {name: value for name, value in SETTINGS.items() if name not in os.environ}
    own = {
        "PREFECT_HOME": str(files.home),
        "PREFECT_API_URL": service.api,
        "PREFECT_UI_STATIC_DIRECTORY": str(files.home / "ui"),
        "PREFECT_SERVER_API_PORT": str(urlsplit(service.address).port),
        ROOT_VARIABLE: service.root,
    }
    return {**given, **own, **({CLIENT_SECRET: auth_string} if auth_string else {})}
