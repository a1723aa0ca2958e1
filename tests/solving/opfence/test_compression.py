"""AdaTopK: bytes and ratio of each link by eq. (7) with the codec's own cost, by hand."""

from typing import Any

import pytest

from tests.support.solving.opfence.instances import Plain, drawn, operator, solved
from tests.support.solving.opfence.reference import Judged


def two_links(**changes: Any) -> Plain:
    """Three operators that memory spreads over three devices in a row, by equal numbers: a sends b 4000 bytes in 4 s, b
    sends c 4000 bytes in 0.4 s."""
    return drawn(
        operators=[operator("x", 1, 1, 4000, []), operator("y", 1, 1, 4000, ["x"]), operator("z", 1, 1, 4, ["y"])],
        alpha_s=[[0] * 3] * 3,
        beta_s_per_byte=[[0, 1e-3, 1], [1, 0, 1e-4], [1, 1, 0]],
        **changes,
    )


@pytest.mark.parametrize(
    ("ratio", "codec", "first", "second"),
    [
        (None, 12.0, (4000, 1.0), (4000, 1.0)),  # no ratio: dense
        (1, 12.0, (4000, 1.0), (4000, 1.0)),  # 334 of 1000 kept, 12 bytes each: no fewer than dense
        (10, 12.0, (34 * 12, 30.0), (334 * 12 if 334 * 12 < 4000 else 4000, 1.0)),  # 3 on the fast link gains nothing
        (100, 12.0, (4 * 12, 300.0), (34 * 12, 30.0)),
        (1000, 12.0, (1 * 12, 3000.0), (4 * 12, 300.0)),
        (10, 6.0, (67 * 6, 15.0), (667 * 6 if 667 * 6 < 4000 else 4000, 1.0)),  # 1 < r < c / element_bytes: dense
        (11, 6.0, (61 * 6, 16.5), (607 * 6, 1.65)),  # just enough
        (1, 2.0, (1000 * 2, 1.0), (1000 * 2, 1.0)),  # a codec of fewer bytes than an element: sent so at ratio 1
        (8, 2.0, (250 * 2, 4.0), (1000 * 2, 1.0)),
    ],
)
def test_ratio(ratio: float | None, codec: float, first: tuple[int, float], second: tuple[int, float]) -> None:
    """Bytes on the wire and ratio of the slow link and of the one ten times as fast."""
    plan = solved(two_links(compression_ratio=ratio, codec_bytes_per_kept_element=codec), "equal-modules")
    for link, (sender, to), (size, thinned) in zip(plan["links"], ["ab", "bc"], [first, second], strict=True):
        assert (link["from"], link["to"], link["bytes"]) == (sender, to, size)
        assert link["ratio"] == pytest.approx(thinned)
    # Eq. (3): computing 1/100, 1/100 and 1/50 s, and twice what the links take or more.
    taken = [first[0] * 1e-3, second[0] * 1e-4]
    assert plan["objective"] == pytest.approx(0.04 + sum(taken) + 3 * max(*taken, 0.02))


def test_sent_once() -> None:
    """An output that two operators of a device read crosses once; each transfer pays the latency."""
    plain = drawn(
        operators=[
            operator("x", 0, 1, 100, []),
            operator("w", 0, 1, 60, []),
            operator("y", 0, 1, 4, ["x", "w"]),
            operator("z", 0, 1, 4, ["x"]),
        ],
        devices=drawn()["devices"][:2],
        alpha_s=[[0, 0.5], [0.5, 0]],
        beta_s_per_byte=[[0, 0.001], [0.001, 0]],
        micro_batches=1,
    )
    plan = solved(plain, "equal-modules")
    assert plan["placement"] == {"x": "a", "w": "a", "y": "b", "z": "b"}
    assert plan["links"] == [{"from": "a", "to": "b", "bytes": 160, "ratio": 1.0}]
    assert plan["objective"] == pytest.approx(2 * 0.5 + 0.160)


def test_ratio_is_not_lost_to_rounding() -> None:
    """300000 elements thinned by 300 keep 1000 on the slowest link, whatever its speed: 300 x R / R may be a little
    less than 300."""
    for k in range(200):
        plain = two_links(compression_ratio=100, codec_bytes_per_kept_element=12.0)
        plain["operators"][0]["output_bytes"] = 1_200_000
        plain["beta_s_per_byte"] = [[0, 1e-3 * (1 + k / 77), 1], [1, 0, 1e-5], [1, 1, 0]]
        plan = solved(plain, "equal-modules")
        assert plan["links"][0]["bytes"] == 12_000
    assert Judged(plain, plan["placement"]).links["a", "b"] == (12_000, 300)
