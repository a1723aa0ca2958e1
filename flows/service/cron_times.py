"""The times of a cron expression as cron(8) and crontab(5) have them, also around a change of clocks, for Prefect.

Prefect's own times move a night's run an hour early when the clock goes forward, and leave an hour out when it goes
back. Cron tells two kinds of jobs apart when the clock changes by less than three hours. One at times of the day runs
once, whatever the clock does: soon after the change if its time was skipped, and not again when its time is repeated.
One with a `*` in its minute or hour runs by the clock as it is: in a repeated hour again, in a skipped one not. The two
fields of days are joined by `or` only where neither has a `*`.
"""

import datetime
import heapq
from collections.abc import Iterator
from itertools import islice, takewhile
from typing import Any
from zoneinfo import ZoneInfo

from prefect._vendor.croniter.croniter import CroniterBadDateError, croniter
from prefect.server.schemas import schedules
from prefect.types._datetime import create_datetime_instance

CHANGE = datetime.timedelta(hours=3)
"""A larger change of the clock is a correction, and the new time holds at once."""
SECOND = datetime.timedelta(seconds=1)


def cron_times(cron: str, zone: ZoneInfo, start: datetime.datetime, day_or: bool = True) -> Iterator[datetime.datetime]:
    """Yield the times of a cron expression in UTC from `start` on, in order, each once. day_or: False for the days on
    which both fields of days agree, which Prefect offers and cron(8) does not."""
    cron = "0 * * * *" if cron.strip().lower() == "@hourly" else cron  # the only name with a * in those fields
    fixed = "*" not in " ".join(cron.split()[:2])
    waiting: list[datetime.datetime] = []  # those of a repeated hour come after others that the clock shows later
    last = start.astimezone(datetime.UTC) - SECOND
    for time in _on_the_clock(cron, start.astimezone(zone).replace(tzinfo=None) - CHANGE, day_or):
        found = _moments(time.replace(tzinfo=zone), fixed)
        for moment in found:
            heapq.heappush(waiting, moment)
        while found and waiting and waiting[0] <= found[0]:
            moment = heapq.heappop(waiting)
            if moment >= start and moment != last:
                last = moment
                yield moment


def _on_the_clock(cron: str, start: datetime.datetime, day_or: bool) -> Iterator[datetime.datetime]:
    """Yield the times that match, as a clock without changes shows them; ends where a date never comes again."""
    parser: Any = croniter
    # implement_cron_bug: its name for crontab(5)'s rule of days
    times = parser(cron, start - SECOND, day_or=day_or, implement_cron_bug=day_or)
    try:
        while True:
            yield times.get_next(datetime.datetime)
    except CroniterBadDateError:
        return


def _moments(time: datetime.datetime, fixed: bool) -> list[datetime.datetime]:
    """The moments in UTC at which a job runs whose time the clock shows as `time`, in its zone."""
    first, second = (time.replace(fold=fold).astimezone(datetime.UTC) for fold in (0, 1))
    changed = abs(second - first)
    if not changed:
        return [first]
    fixed = fixed and changed < CHANGE
    if second > first:  # the clock shows it twice
        return [first] if fixed else [first, second]
    return [_change_between(second, first, time)] if fixed else []


def _change_between(low: datetime.datetime, high: datetime.datetime, time: datetime.datetime) -> datetime.datetime:
    """The moment at which the clock goes forward, to the second."""
    before = low.astimezone(time.tzinfo).utcoffset()
    while high - low > SECOND:
        middle = low + (high - low) / 2
        low, high = (middle, high) if middle.astimezone(time.tzinfo).utcoffset() == before else (low, middle)
    return high.replace(microsecond=0)


def follow_cron() -> None:
    """Give the schedules of Prefect's server in this process the times of cron(8)."""
    schedules.CronSchedule._get_dates_generator = _dates_of  # type: ignore[method-assign,assignment]


def _dates_of(
    self: schedules.CronSchedule,
    n: int | None = None,
    start: datetime.datetime | None = None,
    end: datetime.datetime | None = None,
) -> Iterator[Any]:
    """As the method of Prefect's that it replaces: at most `n` times, by default all to `end`, or one without it."""
    zone = ZoneInfo(self.timezone or "UTC")
    first, last = (None if one is None else _aware(one, zone) for one in (start, end))
    times = cron_times(self.cron, zone, first or datetime.datetime.now(datetime.UTC), self.day_or)
    wanted = n if n is not None else schedules.MAX_ITERATIONS if last else 1
    until = takewhile(lambda moment: last is None or moment <= last, times)
    return (create_datetime_instance(moment) for moment in islice(until, wanted))


def _aware(moment: datetime.datetime, zone: ZoneInfo) -> datetime.datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=zone)
