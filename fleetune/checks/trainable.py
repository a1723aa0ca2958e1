"""Features of plans that can be made, timed and drawn, but that workers do not run yet.

Fields with neutral values are no features, since ignoring them is correct.
"""

from collections.abc import Iterator

from fleetune.contracts.plan import Lane, Plan


def untrainable_features(plan: Plan) -> tuple[str, ...]:
    """Return what the plan has beyond a chain of segments on uncompressed links; empty if it can be trained."""
    return tuple(_features(plan))


def _features(plan: Plan) -> Iterator[str]:
    if len(plan.lanes) > 1:
        yield f"{len(plan.lanes)} lanes"
    if any(_reuses_devices(lane) for lane in plan.lanes):
        yield "devices in several segments"
    if any(segment.trained != segment.units for lane in plan.lanes for segment in lane.segments):
        yield "segments that train only some of their units"
    if not all(use.is_neutral for use in plan.links):
        yield "compressed or shared links"
    if not all(gate.is_neutral for gate in plan.gates):
        yield "gates"
    if plan.collector:
        yield f"a collector ({plan.collector})"


def _reuses_devices(lane: Lane) -> bool:
    devices = [device for segment in lane.segments for device in segment.devices]
    return len(set(devices)) < len(devices)
