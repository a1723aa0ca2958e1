"""What links cost a device's processor, in seconds that its computing loses."""

from fleetune.contracts.fleet import Device


def lost_s_per_byte(device: Device) -> float:
    """Seconds by which a byte sent or received delays what the device computes.

    A worker computes with t threads, and a thread of the link encrypts beside them, `c = link_cpu_s_per_byte` processor
    seconds a byte. Under `cores` for all of them (a container's quota, or a small machine) each thread gets
    min(1, cores / (t + 1)) of a core while the link is at work, as the cores are dealt evenly, so the link is at work
    for c max(1, (t + 1) / cores) seconds a byte. Meanwhile every computing thread gets c processor seconds done, for
    which it would have needed c max(1, t / cores) alone. The difference is lost:

    - a core more than computing threads: nothing, each thread has its own;
    - as many cores as computing threads: c / t;
    - one thread on half a core: 2c, every processor second takes two; on 1.5 cores: c (2 / 1.5 - 1).

    Nothing is lost where an accelerator computes, nor on an emulated device of the process launcher: that holds only
    the computing thread to its pace (`fleetune.launching.pace`), and the link works beside it on the machine's own
    cores.
    """
    if device.accelerator != "cpu" or (device.emulated and device.launcher == "process"):
        return 0.0
    busy = max(1.0, (device.threads + 1) / device.cores)
    alone = max(1.0, device.threads / device.cores)
    return device.link_cpu_s_per_byte * (busy - alone)
