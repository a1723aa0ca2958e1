"""Data rooms: any source becomes a folder of arrays that every device can map into memory and read by row.

`prepare` writes that folder, `PreparedData` reads it, `batch_indices` says which rows a round takes, and
`content_digest` says whether the source has changed. May import: contracts, errors; numpy, pyarrow, tokenizers,
transformers' tokenizers, never torch. Tokenising while training was set aside: it would cost every device the
same work every epoch, and what a round saw could not be looked at afterwards. The `datasets` package was set
aside too, except for names on the hub: its folders are Arrow files, which pyarrow reads.
"""

from fleetune.data.batches import batch_indices
from fleetune.data.digest import content_digest
from fleetune.data.early import prove_data
from fleetune.data.folder import PreparedData
from fleetune.data.needs import InputNeeds
from fleetune.data.prepare import prepare
from fleetune.data.sources import pinned_request

__all__ = [
    "InputNeeds",
    "PreparedData",
    "batch_indices",
    "content_digest",
    "pinned_request",
    "prepare",
    "prove_data",
]
