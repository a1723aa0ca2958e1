"""Planners, one per file. None uses another, except that `search` starts from the plans of the others."""

SUMMARIES = {
    "search": "ours: many starts, annealed by the exact simulation; leaves out devices that slow the round",
    "asteroid": "the paper's dynamic program over stages, groups and shares (Algorithms 1 and 2)",
    "single": "the whole model on the fastest device that has the memory for it",
    "dp": "data parallelism: the whole model everywhere, the slowest share as fast as can be; ignores memory and links",
    "pp": "pipeline parallelism (GPipe): one device a stage, cuts by time; ignores memory and what crosses",
    "eddl": "data parallelism, samples in proportion to measured capacity; ignores memory and links",
    "dapple": "DAPPLE: the pipeline latency of alike devices by a pivot stage; ignores memory and unevenness",
    "pipedream": "PipeDream, synchronous: the slowest stage of alike devices as fast as can be; ignores memory and "
    "unevenness",
    "hetpipe": "HetPipe: asynchronous pipelines with a parameter server, judged by its own round; ignores memory",
}
"""Method -> summary; the first is the default. Kept here so that listing the methods compiles nothing."""
