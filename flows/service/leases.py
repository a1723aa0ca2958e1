"""Prefect's leases of the one slot of a deployment; the server finds this module by its name in `environment.SETTINGS`.

By default a server keeps leases in memory, so that its restart would end long runs minutes later. In files, a lease
that was not renewed for five minutes is taken back: a run that was suspended, or on a machine that slept, would lose
its slot to another one, train beside it when it wakes, and be ended. Here the lock that the run's process holds counts,
which says more than a clock. A run whose process is gone gives its slot back by its end: see `ended_runs`.
"""

from uuid import UUID

from prefect.server.concurrency.lease_storage import filesystem

from fleetune.store.lock import is_held
from flows.service_files import ServiceFiles


class ConcurrencyLeaseStorage(filesystem.ConcurrencyLeaseStorage):
    """Leases in files of Prefect's folder in the store."""

    async def read_expired_lease_ids(self, limit: int = 100) -> list[UUID]:
        """Ids of leases that were not renewed in time, and whose flow run has no process."""
        return [lease for lease in await super().read_expired_lease_ids(limit) if not await self._may_live(lease)]

    async def _may_live(self, lease: UUID) -> bool:
        """True for a lease whose flow run has a process. Most leases name no holder: any that lives counts."""
        found = await self.read_lease(lease)
        holder = found.metadata.holder if found and found.metadata else None
        if found is None or (holder is not None and holder.type != "flow_run"):
            return False
        files = ServiceFiles(self.storage_path.parent.parent)  # it lies in the folder `prefect` of the store
        lock = files.flow_run_lock(str(holder.id) if holder else "any")
        return is_held(lock) if holder else any(map(is_held, lock.parent.glob("*.lock")))
