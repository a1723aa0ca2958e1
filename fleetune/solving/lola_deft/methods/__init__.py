"""The planners; `bisection` and the paper's dual ascent start from CRUNCH's plan."""

SUMMARIES = {
    "bisection": "ours: blocks and bandwidth chosen together, the least latency, proven; equal bandwidth: by matching",
    "crunch": "the paper's Algorithm 2: the least latency of equal bandwidth (default where bandwidth is equal)",
    "dual-ascent": "the paper's Algorithm 3 (JBBA): its best allocation, the band divided exactly; joint only",
    "compute-aware": "the fastest devices, the deepest block on the fastest; equal bandwidth; ignores memory, channels",
    "channel-aware": "the best channels, the deepest block on the best; equal bandwidth; ignores memory, speeds",
}
"""Method -> summary; the first is the default unless the kind says otherwise."""
