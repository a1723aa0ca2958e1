"""`fleetune cite`: BibTeX of the papers that a run file uses."""

from pathlib import Path
from typing import Annotated

import typer

Config = Annotated[Path, typer.Argument(help="Run file, such as configs/runs/demo.yaml.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change the config: strategy=d2ft. Repeatable."),
]


def cite(config: Config, sets: Sets = None) -> None:
    """Print BibTeX entries of the papers that a run file uses: its strategy's, and those of its options."""
    from fleetune.planning import citations
    from flows import configs

    typer.echo("\n\n".join(citations(configs.load(config, sets or ()).strategy)))
