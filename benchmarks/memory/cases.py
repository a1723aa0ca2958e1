"""The ways to train that are compared: changes of the demo's run file."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One way to train."""

    name: str
    sets: tuple[str, ...] = ()
    """Changes, as `--set` takes them."""


FULL = Case(name="full")
LORA = Case(name="LoRA", sets=("model=minilm-lora",))


def ways() -> tuple[Case, ...]:
    """All of them."""
    return FULL, LORA
