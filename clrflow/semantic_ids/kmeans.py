"""K-means whose clusters share the load: the start of every codebook and each later touch on it.

Plain k-means spends its centres on the dense middle and leaves many of them to single outliers. On residuals this feeds on itself: an
item that has a centre of its own leaves a residual of zero, all zeros meet in one code of the next level, and that level collapses. Here
a centre has a price, and a vector goes to the centre with the least squared distance plus price. Prices come from Sinkhorn's iteration
for optimal transport between vectors and equally loaded centres, loosened by `balance`. The cells keep straight borders, an item's code
depends on nothing but the item, and with a balance of 0 it is ordinary k-means.
Next: quantiser.py (levels of such codebooks).
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

CELLS_PER_CHUNK = 1 << 20
"""Distances held at a time: 4 MB of float32, which stay in a core's cache."""
MAX_THREADS = 16
"""Threads that look for nearest centres where torch itself has one (OMP_NUM_THREADS=1, as in every pod)."""
SAMPLE_PER_CENTRE = 64
"""Vectors a centre that fitting looks at; more change the centres by less than their own noise."""
PRICED_PER_CENTRE = 16
"""Vectors a centre that prices are found on: the whole table of their distances is held at once."""
SOFTNESS = 0.05
"""Width of Sinkhorn's soft borders in mean squared distances of a vector to its centre. Narrower balances the hard cells better and needs
more rounds; at 0.15 perplexities fell by 0.02 to 0.06 at equal reconstruction."""
SINKHORN_ROUNDS = 5
"""Each round of k-means goes on from the prices of the one before, so few are enough."""
TINY = 1e-30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Centres:
    """What a level needs to give codes."""

    vectors: Tensor
    """float32 [num_codes, dim]."""
    prices: Tensor
    """float32 [num_codes], in squared distance."""


def nearest(vectors: Tensor, centres: Tensor, prices: Tensor, tolerance: float = 0.0) -> tuple[Tensor, Tensor]:
    """Code and squared distance of each vector, least distance plus price, the lower code on ties (of up to `tolerance`).

    vectors [rows, dim], centres [codes, dim], prices [codes], all finite and of one dtype → int64 [rows], [rows].
    """
    offsets = centres.square().sum(1) + prices

    def quickly(part: Tensor) -> Tensor:
        return _cheapest(torch.addmm(offsets, part, centres.T, alpha=-2))

    find = _Certain(centres, offsets, tolerance) if vectors.dtype == torch.float64 else quickly
    codes = torch.cat(list(_each(find, vectors.split(max(1, CELLS_PER_CHUNK // len(centres))))))
    return codes, (vectors - centres[codes]).square().sum(1)


def _each(work: Callable[[Tensor], Tensor], parts: Sequence[Tensor]) -> Iterator[Tensor]:
    """`work` of each part, in order. The parts are the same whatever the number of threads, and so is each result to the last bit."""
    if len(parts) == 1 or parts[0].device.type != "cpu" or torch.get_num_threads() > 1:
        return map(work, parts)
    return _threads().map(work, parts)


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=min(MAX_THREADS, len(os.sched_getaffinity(0))), thread_name_prefix="kmeans")


class _Certain:
    """Codes as float64 finds them: in float32, several times as fast, and in float64 where that can't tell."""

    def __init__(self, centres: Tensor, offsets: Tensor, tolerance: float):
        self.centres, self.offsets, self.tolerance = centres, offsets, tolerance
        self.rough_centres, self.rough_offsets = centres.float(), offsets.float()
        # Rounding of the inputs, of a product of `dim` terms in any order, and of its sum with the offset.
        self.error = (centres.shape[1] + 4) * 2.0**-24
        self.reach, self.shift = 2 * float(centres.square().sum(1).max().sqrt()), float(offsets.abs().max())

    def __call__(self, vectors: Tensor) -> Tensor:
        costs = torch.addmm(self.rough_offsets, vectors.float(), self.rough_centres.T, alpha=-2)
        codes = _cheapest(costs)
        least = costs.gather(1, codes[:, None])[:, 0]
        second = costs.scatter_(1, codes[:, None], torch.inf).amin(1)
        slack = self.error * (vectors.square().sum(1).sqrt() * self.reach + self.shift)
        unclear = (second - least <= 2 * slack + self.tolerance).nonzero()[:, 0]
        if len(unclear):
            exact = torch.addmm(self.offsets, vectors[unclear], self.centres.T, alpha=-2)
            codes[unclear] = (exact <= exact.amin(1, keepdim=True) + self.tolerance).to(torch.uint8).argmax(1)
        return codes


def _cheapest(costs: Tensor) -> Tensor:
    """The code of the least cost of each row, the lower one on ties. On a CPU numpy finds it many times as fast as torch."""
    return torch.from_numpy(costs.numpy().argmin(1)) if costs.device.type == "cpu" else costs.argmin(1)


def tally(vectors: Tensor, codes: Tensor, num_codes: int) -> tuple[Tensor, Tensor]:
    """Count and sum of the vectors of each code: [codes], [codes, dim]. They add up over batches and over processes."""
    counts = torch.bincount(codes, minlength=num_codes).to(vectors.dtype)
    sums = torch.zeros(num_codes, vectors.shape[1], dtype=vectors.dtype, device=vectors.device).index_add_(0, codes, vectors)
    return counts, sums


def balancing_prices(vectors: Tensor, centres: Tensor, prices: Tensor, balance: float) -> Tensor:
    """Prices under which the centres serve more equal numbers of vectors, going on from `prices`.

    `balance` is the weight of the loads' divergence from equal ones, in mean squared distances: 0 leaves prices at zero, and at 1 the
    perplexity of the loads is usually above 0.9 of the codes.
    """
    if balance == 0:
        return torch.zeros_like(prices)
    costs = torch.addmm(centres.square().sum(1), vectors, centres.T, alpha=-2)
    least = costs.min(1, keepdim=True).values
    spread = (least[:, 0] + vectors.square().sum(1)).mean().clamp(min=1e-12)
    # In place, as this is the largest table of the whole step; cut off at e**-60, as numbers near the smallest make a CPU crawl.
    kernel = costs.sub_(least).div_(-SOFTNESS * spread).clamp_(min=-60).exp_()
    columns = (-prices / (SOFTNESS * spread)).clamp(-60, 60).exp()
    share, power = len(vectors) / len(centres), balance / (balance + SOFTNESS)
    for _ in range(SINKHORN_ROUNDS):
        rows = 1 / (kernel @ columns).clamp(min=TINY)
        columns = (share / (kernel.T @ rows).clamp(min=TINY)).pow(power)
    return -SOFTNESS * spread * columns.log()


def first_of_each(vectors: Tensor) -> Tensor:
    """Indices of the first of each set of equal rows, ascending: int64 [distinct]."""
    _, inverse = torch.unique(vectors, dim=0, return_inverse=True)
    rows = torch.arange(len(vectors), device=vectors.device)
    first = torch.full((int(inverse.max()) + 1,), len(vectors), device=vectors.device, dtype=torch.int64)
    return first.scatter_reduce_(0, inverse, rows, "amin").sort().values


def fit(
    vectors: Tensor,
    num_codes: int,
    generator: torch.Generator,
    *,
    balance: float = 0.0,
    rounds: int = 20,
    start: Centres | None = None,
) -> Centres:
    """Centres of `vectors` (float32 [rows, dim], finite), going on from `start` or from random distinct rows.

    A centre that serves nobody moves half-way from a random vector (so into a crowd, most likely) to that vector's centre: that splits a
    large cluster instead of giving an outlier a centre of its own. With no more distinct vectors than codes each gets its own centre,
    and the spare ones lie close around, for items that come later.
    """
    vectors = _sample(vectors, SAMPLE_PER_CENTRE * num_codes, generator)
    distinct = first_of_each(vectors)
    if len(distinct) <= num_codes:
        return _one_each(vectors[distinct], num_codes, generator)
    priced = _sample(vectors, PRICED_PER_CENTRE * num_codes, generator)
    if start is None:
        chosen = torch.randperm(len(distinct), generator=generator)[:num_codes].to(vectors.device)
        start = Centres(vectors=vectors[distinct[chosen]], prices=vectors.new_zeros(num_codes))
    centres, prices = start.vectors, start.prices
    for _ in range(rounds):
        prices = balancing_prices(priced, centres, prices, balance)
        codes, _ = nearest(vectors, centres, prices)
        counts, sums = tally(vectors, codes, num_codes)
        centres = torch.where(counts[:, None] > 0, sums / counts.clamp(min=1)[:, None], centres)
        idle = (counts == 0).nonzero()[:, 0]
        if len(idle):
            helped = torch.randint(len(vectors), (len(idle),), generator=generator).to(vectors.device)
            centres[idle] = (vectors[helped] + centres[codes[helped]]) / 2
            prices[idle] = 0
    return Centres(vectors=centres, prices=balancing_prices(priced, centres, prices, balance))


def _sample(vectors: Tensor, limit: int, generator: torch.Generator) -> Tensor:
    if len(vectors) <= limit:
        return vectors
    return vectors[torch.randperm(len(vectors), generator=generator)[:limit].sort().values.to(vectors.device)]


def _one_each(distinct: Tensor, num_codes: int, generator: torch.Generator) -> Centres:
    """A centre for each of few vectors, and spare ones at a tenth of the vectors' spread (of their length, where there is one)."""
    count, dim = distinct.shape
    spare = num_codes - count
    deviation = float((distinct - distinct.mean(0)).square().mean().sqrt()) or float(distinct.square().mean().sqrt()) or 0.01
    noise = torch.randn(spare, dim, generator=generator).to(distinct.device) * (0.1 * deviation)
    around = distinct[torch.arange(spare, device=distinct.device) % count] + noise
    return Centres(vectors=torch.cat([distinct, around]), prices=distinct.new_zeros(num_codes))
