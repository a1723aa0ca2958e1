"""Addresses of runs and files on the store's pages, which the service of the store shows."""

import os
from pathlib import Path

from fleetune.contracts.record import record
from fleetune.store import Store
from flows.inspection.page import code, link
from flows.prefect_server import API_URL
from flows.service_files import ServiceFiles, lasting_path


@record
class StoreLinks:
    """Links to the pages of a store; without a service they are paths, since Prefect's UI drops links to files."""

    root: str
    """Root of the store."""
    pages: str = ""
    """Address of its pages; empty without a service."""

    def run(self, run: str) -> str:
        """Link to the page of a run; its name alone without a service."""
        return link(run, f"{self.pages}/runs/{run}" if self.pages else "")

    def artifact(self, kind: str, digest: str) -> str:
        """Link to the files of an artifact; the kind alone without a service."""
        return link(kind, f"{self.pages}/artifacts/{kind}/{digest}" if self.pages else "")

    def file(self, text: str, kind: str, digest: str, path: str) -> str:
        """Link to a file of an artifact; its path without a service."""
        place = f"artifacts/{kind}/{digest}/{path}"
        return link(text, f"{self.pages}/{place}") if self.pages else f"{text}: {code(f'{self.root}/{place}')}"

    def comparison(self, comparison: str) -> str:
        """Link to the page of a comparison; its path without a service."""
        place = f"comparisons/{comparison}/comparison.html"
        return link("This comparison", f"{self.pages}/{place}") if self.pages else code(f"{self.root}/{place}")


def links_of(store: Store) -> StoreLinks:
    """The links of a store, by its service if one runs.

    They are kept on that service's own pages, and so they name no port: the next `up` may have another one.
    """
    files = ServiceFiles(store.local)
    service = files.running()
    if service is None:
        return StoreLinks(root=store.root if "://" in store.root else str(Path(store.root).resolve()))
    elsewhere = os.environ.get(API_URL, service.api) != service.api
    return StoreLinks(root=service.root, pages=f"{service.address if elsewhere else ''}{lasting_path(files)}")
