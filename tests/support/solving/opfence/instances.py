"""Problems of kind "opfence": a small one, random ones, and networks of real shape; and their plans as JSON values."""

from random import Random
from typing import Any

from fleetune.contracts import json_io
from fleetune.errors import Infeasible
from fleetune.solving import document
from fleetune.solving.opfence.methods import SUMMARIES
from fleetune.solving.opfence.problem import Problem
from fleetune.solving.opfence.solve import solve
from tests.support.solving.opfence.reference import check

Plain = dict[str, Any]


def operator(name: str, flops: int, params: int, output: int, inputs: list[str]) -> Plain:
    """Return an operator."""
    return {"name": name, "flops": flops, "param_bytes": params, "output_bytes": output, "inputs": inputs}


def drawn(**changes: Any) -> Plain:
    """Five operators with a skip over the middle, on two fast devices and a slow one across a slow link.

    A second on `a` or `b` does 100 flops, on `c` 50. Memory of an operator: 4 times its parameters and 4 outputs.
    """
    plain: Plain = {
        "kind": "opfence",
        "operators": [
            operator("in", 100, 10, 100, []),
            operator("left", 200, 20, 40, ["in"]),
            operator("mid", 200, 20, 40, ["left"]),
            operator("add", 0, 0, 40, ["in", "mid"]),
            operator("out", 100, 10, 8, ["add"]),
        ],
        "devices": [
            {"name": "a", "flops_per_s": 100.0, "memory_bytes": 1000},
            {"name": "b", "flops_per_s": 100.0, "memory_bytes": 1000},
            {"name": "c", "flops_per_s": 50.0, "memory_bytes": 2000},
        ],
        "alpha_s": [[None, 0.5, 1.0], [0.5, None, 1.0], [1.0, 1.0, None]],
        "beta_s_per_byte": [[None, 0.001, 0.1], [0.001, None, 0.1], [0.1, 0.1, None]],
        "micro_batches": 4,
        "optimizer_bytes_per_param_byte": 2.0,
        "compression_ratio": None,
        "codec_bytes_per_kept_element": 6.0,
        "element_bytes": 4,
    }
    return plain | changes


def tiny(seed: int, operators: int = 5, devices: int = 3, memory: float | None = None) -> Plain:
    """A random graph, listed in random order, on devices with random links; every third one compressed.

    memory: budgets are about so many times an even share; None: ample.
    """
    random = Random(f"tiny {seed} {operators} {devices} {memory}")
    nodes = []
    for i in range(operators):
        most = min(i, 3)
        inputs = random.sample([f"o{k}" for k in range(max(0, i - 4), i)], random.randint(min(1, most), most))
        if random.random() < 0.1:
            inputs = []
        output = random.choice([4 * random.randint(1, 400), random.randint(0, 3000)])
        nodes.append(operator(f"o{i}", random.randint(0, 2000), random.randint(0, 300), output, inputs))
    random.shuffle(nodes)
    rounds = random.choice([1, 2, 5, 20])
    optimizer = random.choice([0.0, 1.0, 2.0])
    need = sum(x["param_bytes"] * (2 + optimizer) + rounds * x["output_bytes"] for x in nodes)
    ample = memory is None
    budgets = [
        int(need if ample else need * (memory or 0.0) / devices * random.uniform(0.5, 1.5)) for _ in range(devices)
    ]
    link_s = random.choice([0.001, 0.1, 1.0, 10.0])
    thin = seed % 3 == 0
    return {
        "kind": "opfence",
        "operators": nodes,
        "devices": [
            {"name": f"d{i}", "flops_per_s": random.choice([100.0, 250.0, 1000.0]), "memory_bytes": budgets[i]}
            for i in range(devices)
        ],
        "alpha_s": _matrix(random, devices, 0.0, 0.1 * link_s),
        "beta_s_per_byte": _matrix(random, devices, 0.0, 2e-3 * link_s),
        "micro_batches": rounds,
        "optimizer_bytes_per_param_byte": optimizer,
        "compression_ratio": random.choice([1, 1.5, 10.0, 100.0]) if thin else None,
        "codec_bytes_per_kept_element": random.choice([2.5, 4.0, 6.0, 12.0]),
        "element_bytes": random.choice([2, 4]),
    }


def _matrix(random: Random, count: int, low: float, high: float) -> list[list[float | None]]:
    zero = random.random() < 0.1
    return [
        [None if a == b else 0.0 if zero else random.uniform(low, high) for b in range(count)] for a in range(count)
    ]


def clustered(seed: int, nodes: list[Plain], sizes: tuple[int, ...], ratio: float | None = None) -> Plain:
    """A graph on clusters of devices: links inside a hundred times as fast as those between; devices of three speeds,
    listed in random order."""
    random = Random(f"clustered {seed} {sizes} {ratio}")
    home = [cluster for cluster, size in enumerate(sizes) for _ in range(size)]
    random.shuffle(home)
    count, flops = len(home), sum(x["flops"] for x in nodes)
    speeds = [flops / count * random.choice([1.0, 2.0, 4.0]) for _ in home]
    size = sum(x["output_bytes"] for x in nodes) / len(nodes)
    needs = [x["param_bytes"] * 4 + 5 * x["output_bytes"] for x in nodes]
    budget = max(int(2.5 * sum(needs) / count), max(needs))

    def link(near: float, far: float) -> list[list[float | None]]:
        return [
            [None if a == b else random.uniform(0.7, 1.3) * (near if home[a] == home[b] else far) for b in range(count)]
            for a in range(count)
        ]

    return {
        "kind": "opfence",
        "operators": nodes,
        "devices": [
            {"name": f"d{i}-{home[i]}", "flops_per_s": speeds[i], "memory_bytes": budget} for i in range(count)
        ],
        "alpha_s": link(1e-4, 1e-2),
        "beta_s_per_byte": link(0.02 / size, 2.0 / size),
        "micro_batches": 5,
        "compression_ratio": ratio,
        "codec_bytes_per_kept_element": 12.0,
    }


def chain(length: int, seed: int = 0) -> list[Plain]:
    """Return a chain of operators."""
    random = Random(f"chain {length} {seed}")
    return [
        operator(
            f"o{i}",
            random.randint(500, 2000),
            random.randint(100, 400),
            4 * random.randint(20, 200),
            [f"o{i - 1}"] if i else [],
        )
        for i in range(length)
    ]


def transformer(blocks: int, width: int = 64) -> list[Plain]:
    """Return a graph of GPT-2's shape: pre-norm blocks with two skips each."""
    found = [operator("embed", 0, 40 * width * width, 4 * width, [])]
    last = before = "embed"
    for i in range(blocks):
        sizes = {
            "norm1": 0,
            "qkv": 3,
            "attention": 1,
            "project": 1,
            "add1": 0,
            "norm2": 0,
            "up": 4,
            "gelu": 0,
            "down": 4,
        }
        for name, share in sizes.items():
            inputs = [last] if name != "add1" else [last, before]
            if name == "norm1":
                before = last
            wide = {"qkv": 3, "up": 4, "gelu": 4}.get(name, 1)
            params = 0 if name in ("attention", "add1", "gelu") else max(share, 1) * width * (width if share else 2)
            found.append(operator(f"{name}.{i}", share * width * width + width, params, 4 * width * wide, inputs))
            last = f"{name}.{i}"
        found.append(operator(f"add2.{i}", width, 0, 4 * width, [f"add1.{i}", last]))
        last = f"add2.{i}"
    return [*found, operator("head", 20 * width * width, 0, 40 * width, [last])]


def resnet(stages: tuple[int, ...], width: int = 16) -> list[Plain]:
    """Return bottleneck blocks; the first of each stage has a convolution on its skip."""
    found, last = [operator("stem", 4000, 600, 64 * width, [])], "stem"
    for stage, blocks in enumerate(stages):
        wide, size = width * 2**stage, 64 * width // 2**stage
        for i in range(blocks):
            start, tag = last, f"{stage}.{i}"
            for k, share in enumerate((1, 9, 4)):
                found.append(
                    operator(
                        f"conv{k}.{tag}", share * wide * size, share * wide * wide, size * (4 if k == 2 else 1), [last]
                    )
                )
                found.append(operator(f"relu{k}.{tag}", size, 0, size * (4 if k == 2 else 1), [f"conv{k}.{tag}"]))
                last = f"relu{k}.{tag}"
            skip = start
            if i == 0:
                skip = f"down.{tag}"
                found.append(operator(skip, 4 * wide * size, 4 * wide * wide, 4 * size, [start]))
            found.append(operator(f"add.{tag}", size, 0, 4 * size, [last, skip]))
            last = f"add.{tag}"
    return [*found, operator("head", 1000, 4000, 400, [last])]


def branches(count: int, length: int) -> list[Plain]:
    """Return parallel chains between a fork and a join, listed alternately."""
    found = [operator("fork", 100, 10, 400, [])]
    for i in range(length):
        for branch in range(count):
            before = f"b{branch}.{i - 1}" if i else "fork"
            found.append(operator(f"b{branch}.{i}", 500 + 100 * branch, 50, 80 + 40 * i, [before]))
    return [*found, operator("join", 200, 10, 40, [f"b{branch}.{length - 1}" for branch in range(count)])]


def solved(plain: Plain, method: str, seed: int = 0, time_limit_s: float | None = None) -> Plain:
    """Return the plan of a method."""
    return document(solve(json_io.load(Problem, plain, "p.json"), method=method, seed=seed, time_limit_s=time_limit_s))


def all_methods(plain: Plain) -> dict[str, Plain]:
    """Return the checked plan of every method that finds one."""
    found = {}
    for method in SUMMARIES:
        try:
            found[method] = solved(plain, method)
        except Infeasible:
            assert method in ("search", "opfence")
            continue
        check(plain, found[method])
        assert found[method]["kind"] == "opfence"
        assert found[method]["method"] == method
    return found
