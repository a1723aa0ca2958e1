"""Profiles and fleets at the ends of their measured spread, for the interval of a forecast."""

from collections.abc import Mapping
from dataclasses import replace

from fleetune.contracts.fleet import Fleet, Link
from fleetune.contracts.profile import DeviceTimes, Profile


def scaled_profile(profile: Profile, factors: Mapping[str, float]) -> Profile:
    """Return the profile with all that a device computes `factors` times as long."""
    return replace(profile, times=tuple(_scaled(times, factors.get(times.device, 1.0)) for times in profile.times))


def _scaled(times: DeviceTimes, factor: float) -> DeviceTimes:
    def rows(found: tuple[tuple[float, ...], ...]) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(time * factor for time in row) for row in found)

    return replace(
        times,
        forward_s=rows(times.forward_s),
        backward_s=rows(times.backward_s),
        update_s=tuple(step_s * factor for step_s in times.update_s),
        codecs=tuple(
            replace(
                codec,
                encode_s=codec.encode_s * factor,
                decode_s=codec.decode_s * factor,
                encode_s_per_byte=codec.encode_s_per_byte * factor,
                decode_s_per_byte=codec.decode_s_per_byte * factor,
            )
            for codec in times.codecs
        ),
        feedback_s_per_byte=times.feedback_s_per_byte * factor,
    )


def scaled_fleet(fleet: Fleet, sign: int) -> Fleet:
    """Return the fleet with messages that take the error of their link's fit longer (sign 1) or shorter (-1)."""

    def scaled(link: Link) -> Link:
        factor = (1 + link.fit_error) ** sign
        return replace(link, latency_s=link.latency_s * factor, bytes_per_s=link.bytes_per_s / factor)

    return replace(fleet, links=tuple(map(scaled, fleet.links)))
