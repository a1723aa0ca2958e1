"""Data preparation: turns any source into a folder of arrays that devices map into memory and read by row.

`prepare_data` writes that folder, `PreparedData` reads it, `batch_indices` selects the rows of a round, and
`content_digest` detects a changed source. Rejected: tokenizing while training, which repeats the work on every device
and epoch and leaves nothing to inspect; and the `datasets` package, except for names on the hub, since pyarrow reads
its Arrow files.
"""

from fleetune.data.prepared_data import PreparedData, batch_indices
from fleetune.data.sources import content_digest, pinned_request, validate_data
from fleetune.data.writer import prepare_data

__all__ = [
    "PreparedData",
    "batch_indices",
    "content_digest",
    "pinned_request",
    "prepare_data",
    "validate_data",
]
