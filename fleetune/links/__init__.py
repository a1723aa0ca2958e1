"""Authenticated, encrypted messages between the devices of one run.

Every run makes its own CURVE keys; an endpoint accepts only the public keys on its list and derives a sender's name
from its authenticated key. A message is a JSON header and raw buffers, never a pickle. Rejected: gloo (neither encrypts
nor authenticates), TLS over plain sockets (needs reconnects, heartbeats and framing on top), gRPC (copies bulk tensors
and limits their size).
"""
