"""Authenticated, encrypted messages between the devices of one run.

May import errors and contracts; knows nothing of torch, plans or rounds. Every run makes its own CURVE keys; an
endpoint talks only to the public keys on its list and takes a sender's name from the proven key. A message is a JSON
header and raw buffers: nothing is ever unpickled. Set aside: gloo (neither encrypts nor authenticates), TLS over plain
sockets (reconnecting, heartbeats and framing would be ours to write), gRPC (copies and limits for bulk tensors).
"""
