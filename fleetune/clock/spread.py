"""Profiles and fleets at the ends of their measured spread, for the interval of a forecast."""

from collections.abc import Mapping
from dataclasses import replace

from fleetune.contracts.fleet import Fleet, Link
from fleetune.contracts.profile import Profile


def scaled_profile(profile: Profile, factors: Mapping[str, float]) -> Profile:
    """Return the profile with all passes of a device `factors` times as long."""

    def scaled(rows: tuple[tuple[float, ...], ...], factor: float) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(time * factor for time in row) for row in rows)

    return replace(
        profile,
        times=tuple(
            replace(
                times,
                forward_s=scaled(times.forward_s, k),
                backward_s=scaled(times.backward_s, k),
                update_s=tuple(step_s * k for step_s in times.update_s),
            )
            for times, k in ((times, factors.get(times.device, 1.0)) for times in profile.times)
        ),
    )


def scaled_fleet(fleet: Fleet, sign: int) -> Fleet:
    """Return the fleet with messages that take the error of their link's fit longer (sign 1) or shorter (-1)."""

    def scaled(link: Link) -> Link:
        factor = (1 + link.fit_error) ** sign
        return replace(link, latency_s=link.latency_s * factor, bytes_per_s=link.bytes_per_s / factor)

    return replace(fleet, links=tuple(map(scaled, fleet.links)))
