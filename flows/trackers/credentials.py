"""Keys and tokens of trackers: from the environment or from Prefect's Secret blocks, never from run files."""

import os


def secret(variable: str) -> str | None:
    """Return the value of an environment variable, or of the Secret block that is called like it (`wandb-api-key` for
    WANDB_API_KEY); None if there is neither.
    """
    return os.environ.get(variable) or _of_block(variable.lower().replace("_", "-"))


def _of_block(name: str) -> str | None:
    from prefect.blocks.system import Secret

    try:
        return str(Secret.load(name).get())  # type: ignore[union-attr]
    except Exception:  # no such block, or a server that does not answer: the caller says what is missing
        return None
