"""The commands `up` and `down`."""

from typing import Annotated

import typer

from flows.cli.options import CommonOptions, with_common_options

Port = Annotated[
    int | None, typer.Option(min=1, max=65535, help="Port of the server, on loopback.", show_default="4200")
]
Password = Annotated[
    bool | None,
    typer.Option(
        help="Ask for the password that is made at the first `up`. Without one, every user and program of this machine "
        "can read the runs and run programs as you.",
        show_default="--password",
    ),
]
Database = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Database of the server, such as postgresql+asyncpg://user@host/name, with its password in ~/.pgpass; or "
        "as PREFECT_SERVER_DATABASE_CONNECTION_URL in the environment; else SQLite in the store.",
    ),
]
Adopt = Annotated[
    bool,
    typer.Option(
        "--adopt",
        help="Take over the password, database and deployments that lie in the store, though no mark tells that you "
        "have made them there. They run programs as you.",
    ),
]


@with_common_options
def up(
    options: CommonOptions,
    port: Port = None,
    password: Password = None,
    database: Database = None,
    adopt: Adopt = False,
) -> None:
    """Start Prefect's server with its UI, a worker, and the deployments of this store; nothing if they run."""
    from fleetune.contracts import json_io
    from flows.service import control
    from flows.service_files import PAGES, USER, ServiceFiles

    local = options.folder()
    out = options.console()
    control.refuse_password(database)
    wanted = control.ServiceOptions(port=port, password=password, database=database, adopt=adopt)
    service = control.up(local, options.root, wanted, (lambda line: None) if options.as_json else out.print)
    files, store = ServiceFiles(local), f"{service.address}{PAGES}/"
    if options.as_json:
        secret = str(files.secret_file) if service.authenticated else None
        options.print_json({**json_io.dump(service), "store": store, "password_file": secret})
        return
    out.print(f"Prefect's UI    {service.address}")
    out.print(f"Runs and files  {store}")
    if not service.authenticated:
        out.print(
            "Login           none: every user and program of this machine can read the runs, and run programs as you"
        )
    elif out.is_terminal:
        out.print(f"Login           {files.login()}  (paste once in each browser)")
    else:  # what others may read, such as the log of a start at boot
        out.print(f"Login           {USER}:PASSWORD, with the password in {files.secret_file}")
    out.print("Stop it with    fleetune down")


@with_common_options
def down(options: CommonOptions) -> None:
    """Stop what `up` started for this store; running runs are stopped and can be retried."""
    from flows.service import control

    stopped = control.down(options.folder(), options.root)
    if options.as_json:
        options.print_json({"stopped": stopped.service.address, "flow_runs": stopped.flow_runs})
        return
    options.console().print(f"stopped {stopped.service.address}")
    if count := stopped.flow_runs:
        runs = "a run was" if count == 1 else f"{count} runs were"
        options.console().print(
            f"{runs} stopped; next: fleetune up{options.root_option()}, and Retry in the UI goes on"
        )
