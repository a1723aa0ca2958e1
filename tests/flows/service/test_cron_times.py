"""The times of schedules, as Prefect's server computes them in the service, by cron's rules. No server is started."""

import asyncio
import datetime

import pytest
from prefect.server.schemas.schedules import CronSchedule

from flows.service.cron_times import follow_cron

SPRING = ("2027-03-27T23:00:00Z", "2027-03-28T03:00:00Z")
"""In Berlin: from midnight to five in summer time; there is no time from two to three, which is 01:00 UTC."""
AUTUMN = ("2026-10-24T22:30:00Z", "2026-10-25T04:00:00Z")
"""From half past midnight in summer time to five; from two to three comes twice, at 00:00 and at 01:00 UTC."""


def times(cron: str, span: tuple[str, str], zone: str = "Europe/Berlin", ends: bool = True) -> list[str]:
    """The times of a span as the server's schedule gives them, `day/hour:minute` in UTC."""
    follow_cron()
    start, end = map(datetime.datetime.fromisoformat, span)
    schedule = CronSchedule(cron=cron, timezone=zone)
    found = asyncio.run(schedule.get_dates(n=None if ends else 2, start=start, end=end if ends else None))
    return [f"{time.astimezone(datetime.UTC):%d/%H:%M}" for time in found]


@pytest.mark.parametrize(
    ("cron", "spring", "autumn"),
    [
        ("0 2 * * *", ["28/01:00"], ["25/00:00"]),
        ("30 2 * * *", ["28/01:00"], ["25/00:30"]),
        ("0,30 2 * * *", ["28/01:00"], ["25/00:00", "25/00:30"]),
        ("0 4 * * *", ["28/02:00"], ["25/03:00"]),
        ("0 1-3 * * *", ["28/00:00", "28/01:00"], ["24/23:00", "25/00:00", "25/02:00"]),
        (
            "0 * * * *",
            ["27/23:00", "28/00:00", "28/01:00", "28/02:00", "28/03:00"],
            ["24/23:00", "25/00:00", "25/01:00", "25/02:00", "25/03:00", "25/04:00"],
        ),
        (
            "@hourly",
            ["27/23:00", "28/00:00", "28/01:00", "28/02:00", "28/03:00"],
            ["24/23:00", "25/00:00", "25/01:00", "25/02:00", "25/03:00", "25/04:00"],
        ),
        ("*/30 2 * * *", [], ["25/00:00", "25/00:30", "25/01:00", "25/01:30"]),
        ("15 */2 * * *", ["27/23:15", "28/02:15"], ["25/00:15", "25/01:15", "25/03:15"]),
    ],
)
def test_a_change_of_clocks(cron: str, spring: list[str], autumn: list[str]) -> None:
    """As cron(8) says: a job at times of the day runs once in each of the two nights, soon after the change if its time
    was skipped; one with a `*` in its minute or hour runs by the clock as it is, and no hour goes by without it."""
    assert (times(cron, SPRING), times(cron, AUTUMN)) == (spring, autumn)


@pytest.mark.parametrize(
    ("cron", "zone", "span", "said"),
    [
        pytest.param(
            *("15 2 * * *", "Australia/Lord_Howe", ("2026-10-03T00:00:00Z", "2026-10-04T16:00:00Z")),
            ["03/15:30", "04/15:15"],
            id="a clock that goes forward by half an hour",
        ),
        pytest.param(
            *("0 12 * * *", "Pacific/Apia", ("2011-12-29T00:00:00Z", "2011-12-31T23:00:00Z")),
            ["29/22:00", "30/22:00", "31/22:00"],
            id="a zone that left a day out: no job of it is made up for",
        ),
        pytest.param(
            *("0 0 1 * mon", "UTC", ("2026-01-01T00:00:00Z", "2026-01-13T00:00:00Z")),
            ["01/00:00", "05/00:00", "12/00:00"],
            id="both fields of days: either",
        ),
        pytest.param(
            *("0 0 */2 * mon", "UTC", ("2026-01-01T00:00:00Z", "2026-01-31T00:00:00Z")),
            ["05/00:00", "19/00:00"],
            id="a * in a field of days: both, here odd days that are Mondays",
        ),
        pytest.param(
            *("0 0 * * 7", "UTC", ("2026-01-01T00:00:00Z", "2026-01-12T00:00:00Z")),
            ["04/00:00", "11/00:00"],
            id="the seventh day is Sunday",
        ),
    ],
)
def test_what_else_cron_says(cron: str, zone: str, span: tuple[str, str], said: list[str]) -> None:
    """Small changes of the clock, large ones, and how the two fields of days are joined: as cron(8) and crontab(5)."""
    assert times(cron, span, zone) == said


def test_a_first_time_at_the_change_itself_and_a_number_of_times() -> None:
    """A job whose time was skipped is found from the moment of the change on; `n` times are given without an end."""
    assert times("0 2 * * *", ("2027-03-28T01:00:00Z", SPRING[1]), ends=False) == ["28/01:00", "29/00:00"]
    assert times("0 2 * * *", ("2027-03-28T01:00:01Z", SPRING[1]), ends=False) == ["29/00:00", "30/00:00"]


def test_days_on_which_both_fields_agree() -> None:
    """Bug: a schedule made in the UI with Prefect's own setting for it ran on the days of either field."""
    follow_cron()
    schedule = CronSchedule(cron="0 9 1 * 1", timezone="UTC", day_or=False)
    start = datetime.datetime(2026, 11, 2, tzinfo=datetime.UTC)
    (found,) = asyncio.run(schedule.get_dates(n=1, start=start))
    assert f"{found:%Y-%m-%d}" == "2027-02-01"
