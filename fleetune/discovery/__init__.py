"""Discovery: finds the devices of a fleet and measures the latency, rate and processor time of the links between them.

One agent process per device reports facts; then every directed link is probed alone, over the encrypted transport that
training uses. A link that deviates from its request or from an earlier run is probed again, and `hysteresis` decides
whether the deviation replaces the earlier fleet. Rejected: timing raw sockets, which are several times faster than the
transport of training; and probing several pairs at a time, which disturb each other on a shared machine.
"""
