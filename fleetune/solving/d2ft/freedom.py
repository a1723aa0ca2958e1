"""Everything that is optimal at once: which micro-batches a subnet must train, which it may, and how many in all.

Ties are the rule (weight magnitude does not depend on the sample), so what is optimal is first described and only then
chosen from, with an eye on what the other subnets train.
"""

from typing import NamedTuple

import numpy as np

from fleetune.solving.d2ft.case import Bools, Ints
from fleetune.solving.proofs import Floats


class Freedom(NamedTuple):
    """Sets of micro-batches [subnet, micro-batch]; any choice between `must` and `may` of `wanted` is optimal.

    Where the two operations share a capacity, how many are trained of two kinds of ties matters as well: of those that
    are otherwise run forward (`or_forward`) at least `least`; of these and of those that may be either or nothing
    (`or_any`) together at most `most`. Both count `may` without `must`.
    """

    must: Bools
    may: Bools
    wanted: Ints
    or_forward: Bools | None = None
    or_any: Bools | None = None
    least: Ints | None = None
    most: Ints | None = None

    @property
    def open(self) -> Bools:
        """[subnet]: where there is anything to choose."""
        found: Bools = self.may.sum(axis=1) > self.wanted
        return found


def best(scores: Floats, count: Ints) -> Freedom:
    """The `count` largest scores of every row [subnet, micro-batch]; -inf is never taken (count must allow for it)."""
    descending = -np.sort(-scores, axis=1)
    last = np.maximum(count - 1, 0)
    least = np.where(count > 0, np.take_along_axis(descending, last[:, None], axis=1)[:, 0], np.inf)[:, None]
    return settled(Freedom(scores > least, scores >= least, count))


def settled(freedom: Freedom) -> Freedom:
    """The same, where what may be is needed whole it must be."""
    return freedom._replace(must=np.where(freedom.open[:, None], freedom.must, freedom.may))
