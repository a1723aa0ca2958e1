"""Frames of messages on a link, as those who send them and those who forecast them know them."""

FRAME_BYTES = 1 << 18
"""Longest frame of a message; a frame is encrypted, sent and decrypted as one."""
