"""The command line `fleetune`: asks the pipeline and the store, and tells a person or (with --json) a program.

May import: flows and everything below; Prefect and torch only through a command that needs them, so that the help
appears at once. Set aside: argparse, which would leave tables, bars and completion of options to us.
"""

from flows.cli.app import app


def main() -> None:
    """Entry point; leaves with the exit code of the command."""
    app()
