"""Is this plan runnable here? Findings in words, before anything is started.

Records prove their own ranges; what must hold between a plan, a fleet and a profile is proven here, by small named
functions that each know one truth. `findings` tells all, `prove` raises the first. Letting the workers find out was
set aside: a plan that cannot run would then fail on many machines at once, each with a part of the reason.

May import: fleetune.clock, fleetune.contracts, fleetune.errors.
"""

from fleetune.checks.findings import findings, prove

__all__ = ["findings", "prove"]
