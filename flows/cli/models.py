"""The command `models`."""

from typing import TYPE_CHECKING

from flows.cli.options import CommonOptions, with_common_options

if TYPE_CHECKING:
    from fleetune.store import PromotionDecision, Store


@with_common_options
def models(options: CommonOptions) -> None:
    """List the models that were promoted, newest first: from which run, on which data, with which scores."""
    from fleetune.contracts import json_io
    from flows.cli import tables

    store = options.store()
    promoted = store.promotions.promoted()
    if options.as_json:
        found = [{**json_io.dump(one), "model": _folder(store, one)} for one in promoted]
        options.print_json({"root": options.root, "models": found})
    elif promoted:
        tables.print_promotions(options.console(), promoted, [_folder(store, one) for one in promoted])
    else:
        options.console().print(f"no promoted models in {options.root}; a run file with `promote` makes them")


def _folder(store: "Store", decision: "PromotionDecision") -> str | None:
    """Path of the Hugging Face folder or PEFT adapter; None when it is gone from the store."""
    from flows.promotion import model_folder

    return str(model_folder(store, decision.checkpoint)) if store.has("checkpoint", decision.checkpoint) else None
