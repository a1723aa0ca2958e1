"""Commits of names on the Hugging Face hub, which branches and tags point to.

The hub's own client takes what its cache has where the hub does not answer, without a word: that may be older.
"""

import re
from pathlib import Path

from fleetune.errors import first_line

COMMIT = re.compile(r"[0-9a-f]{40}")
MODEL, DATASET = "model", "dataset"
REFUSALS = (400, 401, 403, 404)
"""HTTP status of what the hub will not give later either."""


class HubRefusal(Exception):
    """The hub has no such name or revision, or does not give it; str() is its reason."""


class HubSilence(Exception):
    """The hub does not answer; str() is the reason."""

    def __init__(self, reason: str, cached: str) -> None:
        """cached: the commit that the local cache has of the revision, which may be older; empty for none."""
        super().__init__(reason)
        self.cached = cached


def commit_of(kind: str, name: str, revision: str) -> str:
    """Return the commit of a branch or tag of a `model` or `dataset`; a commit is its own.

    Where the hub is not to be asked (HF_HUB_OFFLINE), that of the local cache; empty if it has none. Raises HubRefusal
    and HubSilence.
    """
    from huggingface_hub import HfApi, constants  # a run of folders alone never needs it
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    if COMMIT.fullmatch(revision):
        return revision
    kept = Path(constants.HF_HUB_CACHE) / f"{kind}s--{name.replace('/', '--')}" / "refs" / revision
    found = kept.read_text(encoding="utf-8").strip() if kept.is_file() else ""
    cached = found if COMMIT.fullmatch(found) else ""
    try:
        return str(HfApi().repo_info(name, repo_type=kind, revision=revision).sha or "")
    except OfflineModeIsEnabled:
        return cached
    except HfHubHTTPError as error:
        if error.response is not None and error.response.status_code in REFUSALS:
            raise HubRefusal(first_line(error)) from None
        raise HubSilence(first_line(error), cached) from None
    except HFValidationError as error:  # no name that it could have
        raise HubRefusal(first_line(error)) from None
    except Exception as error:  # the network, a proxy, a damaged answer
        raise HubSilence(first_line(error) or type(error).__name__, cached) from None
