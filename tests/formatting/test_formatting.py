"""Numbers with units, as messages, tables and charts show them."""

import pytest

from fleetune.formatting import (
    aligned_size,
    exact_size,
    gigabytes,
    megabytes,
    percent,
    rate,
    seconds,
    size,
    whole_size,
)


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (seconds(0.00123), "1.23 ms"),
        (seconds(0.99999), "1 s"),
        (seconds(150), "2 min 30 s"),
        (seconds(0), "0 s"),
        (size(4_560_000), "4.56 MB"),
        (size(999), "999 B"),
        (rate(12.5e6), "12.5 MB/s"),
        (percent(-0.074), "-7.4 %"),
    ],
)
def test_quantities_read_as_people_write_them(shown: str, expected: str) -> None:
    """Quantities have three digits and a unit."""
    assert shown == expected


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (gigabytes(54_000_000), "0.05 GB"),
        (gigabytes(8_589_934_592, 1), "8.6 GB"),
        (megabytes(611_600_000), "612 MB"),
        (aligned_size(123_400_000), "123.40 MB"),
        (aligned_size(1000), "1.00 kB"),
        (aligned_size(999.4), "999 B"),
        (aligned_size(2e12), "2000.00 GB"),
        (whole_size(1), "1 byte"),
        (whole_size(2.5), "2.5 bytes"),
        (whole_size(5e9), "5000000000 bytes"),
        (whole_size(1e18), "1e+18 bytes"),
        (exact_size(1), "1 byte"),
        (exact_size(312e6), "312 MB (312000000 bytes)"),
    ],
)
def test_bytes_are_shown_as_their_reader_compares_them(shown: str, expected: str) -> None:
    """Amounts of one sentence share a unit, those of a column their decimals; an error says every byte."""
    assert shown == expected
