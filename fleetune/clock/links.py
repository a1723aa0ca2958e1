"""What links cost a device's processor, in seconds that its computing loses."""

from fleetune.contracts.fleet import Device


def lost_s_per_byte(device: Device) -> float:
    """Seconds by which a byte sent or received delays what the device computes.

    A worker computes with one thread, and threads of the link encrypt beside it, `c = link_cpu_s_per_byte` processor
    seconds a byte. Under a quota of `cores` for both (a container, or a small machine) the link's thread is at work for
    2c/cores seconds a byte, as the quota is dealt evenly; meanwhile the computing thread gets c processor seconds done,
    for which it would have needed c / min(1, cores) alone. The difference is lost:

    - two cores and more: nothing, each thread has its own;
    - one core: c; half a core: 2c, every processor second takes two;
    - between one and two cores: c (2/cores - 1).

    Nothing is lost where an accelerator computes, nor on an emulated device of the process launcher: that holds only
    the computing thread to its pace (`fleetune.launching.pace`), and the link works beside it on the machine's own
    cores.
    """
    if device.accelerator != "cpu" or (device.emulated and device.launcher == "process"):
        return 0.0
    return device.link_cpu_s_per_byte * max(0.0, 2.0 / device.cores - 1.0 / min(1.0, device.cores))
