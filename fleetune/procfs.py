"""Readers of /proc: memory and start time of processes.

Reference: proc(5), sections on /proc/PID/stat and /proc/PID/status.
"""

from pathlib import Path

PEAK_RESIDENT, RESIDENT = "VmHWM", "VmRSS"
"""Fields of /proc/PID/status: peak and current resident memory, mapped files included."""


def status_bytes(field: str, process: int | str = "self") -> int:
    """A memory field of /proc/PROCESS/status in bytes; 0 if the process has ended or there is no such field."""
    try:
        text = Path(f"/proc/{process}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    return 0


def start_ticks(pid: int) -> str:
    """Start time of a process in clock ticks since boot; empty where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
