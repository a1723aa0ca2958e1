"""The complete list of runs (fleets, models, strategies), fixed before the first of them starts."""

from dataclasses import dataclass, replace
from typing import Any

STRATEGIES = ("search", "dp", "pp", "single")
"""Strategies by the names in the table; `search` is strategy asteroid with its default method."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetCase:
    """A fleet of containers with the model, data and training that run on it."""

    name: str
    about: str
    cores: tuple[float, ...]
    links: dict[str, Any]
    model: str
    data: str
    batch_samples: int
    micro_batch_samples: int
    rounds: int
    strategies: tuple[str, ...] = STRATEGIES

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the devices."""
        return tuple(f"{self.name}-{place}" for place in range(len(self.cores)))

    def config(self, strategy: str, image: str) -> dict[str, Any]:
        """The run file of one strategy on this fleet."""
        return {
            "name": f"{self.name}-{strategy}",
            "seed": 1,
            "fleet": {
                "image": image,
                "devices": [
                    {
                        "name": name,
                        "launcher": "docker",
                        "accelerator": "cpu",
                        "emulate": {"cores": cores, "memory_bytes": 2_000_000_000},
                    }
                    for name, cores in zip(self.devices, self.cores, strict=True)
                ],
                "links": self.links,
            },
            "model": self.model,
            "data": self.data,
            "strategy": {"name": "asteroid" if strategy == "search" else strategy},
            "training": {
                "rounds": self.rounds,
                "batch_samples": self.batch_samples,
                "micro_batch_samples": self.micro_batch_samples,
                "learning_rate": 5e-4,
            },
        }


EDGE = FleetCase(
    name="edge",
    about="0.6/0.4/0.3/0.3 cores, 50 and 100 Mbit/s, MiniLM (22 M parameters, all trained)",
    cores=(0.6, 0.4, 0.3, 0.3),
    links={
        "mbit_per_s": 50.0,
        "latency_s": 0.002,
        "pairs": [
            {"source": a, "target": b, "mbit_per_s": 100.0, "latency_s": 0.001}
            for a, b in (("edge-0", "edge-1"), ("edge-1", "edge-0"))
        ],
    },
    model="minilm",
    data="docstrings",
    batch_samples=32,
    micro_batch_samples=8,
    rounds=8,
)
TOWNS = FleetCase(
    name="towns",
    about="0.6/0.5/0.4 cores in three towns, 20 Mbit/s and 20 ms, MiniLM with LoRA",
    cores=(0.6, 0.5, 0.4),
    links={"mbit_per_s": 20.0, "latency_s": 0.02},
    model="minilm-lora",
    data="docstrings",
    batch_samples=32,
    micro_batch_samples=8,
    rounds=8,
)
HOME = FleetCase(
    name="home",
    about="0.9/0.5 cores, 200 Mbit/s, a vision transformer of 0.3 M parameters",
    cores=(0.9, 0.5),
    links={"mbit_per_s": 200.0, "latency_s": 0.0005},
    model="vit-tiny",
    data="digits",
    batch_samples=256,
    micro_batch_samples=64,
    rounds=20,
)
QUICK = replace(HOME, name="quick", rounds=10, strategies=("search", "single"))
ALL = (EDGE, TOWNS, HOME)
