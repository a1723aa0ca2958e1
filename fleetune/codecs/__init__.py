"""Codecs of tensors on links: `encode` gives the parts of a message and a description, `decode` the tensor again.

    dense                         the tensor itself
    fp16, bf16                    half precision; fp16 with a power of two per sample against over- and underflow
    int8, int4                    groups of 64 elements of a sample with a scale each
    int8-hadamard, int4-hadamard  the same after a Hadamard rotation of the group, which spreads outliers
    top-k                         the elements of largest magnitude of a sample, in bfloat16, and their indices
    forward-mask                  a gradient at the elements that top-k kept in the forward, without indices

The first dimension is samples: each is coded on its own, in `fleetune.contracts.link_codecs.wire_bytes` bytes.
"""

from fleetune.codecs.codec import Encoded, ErrorFeedback, decode, encode, kept_indices, part_bytes

__all__ = ["Encoded", "ErrorFeedback", "decode", "encode", "kept_indices", "part_bytes"]
