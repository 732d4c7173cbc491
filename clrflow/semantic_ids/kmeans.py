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

import numpy as np
import torch
from torch import Tensor

from clrflow.semantic_ids.team import ALONE, Team

CELLS_A_PART = 1 << 21
"""Distances that a thread finds at once."""
CELLS_A_CHUNK = 1 << 18
"""Distances that are held at a time: 1 MB of float32, which stays in a core's cache."""
SAMPLE_PER_CENTRE = 64
"""Vectors a centre that fitting looks at; more change the centres by less than their own noise."""
PRICED_PER_CENTRE = 16
"""Vectors a centre that prices are found on: the whole table of their distances is held at once, shared among the processes."""
PRICED_AT_ONCE = 4096
"""Rows of a part of that table."""
DISTINCT_AMONG = 4
"""Vectors a centre among which more different ones than centres are looked for first."""
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


@torch.no_grad()
def nearest(vectors: Tensor, centres: Tensor, prices: Tensor, tolerance: float = 0.0, team: Team = ALONE) -> Tensor:
    """Code of each vector: least squared distance plus price, the lower code on ties (of up to `tolerance`).

    vectors [rows, dim], centres [codes, dim], prices [codes], all finite and of one dtype → int64 [rows].
    """
    find = _Search(centres, centres.square().sum(1) + prices, tolerance)
    parts = vectors.split(max(1, CELLS_A_PART // len(centres)))
    like = torch.zeros((), dtype=torch.int64, device=vectors.device)
    return team.rows(team.each(find, team.mine(parts)), [len(part) for part in parts], like)


class _Search:
    """Codes of vectors, in float32; of float64 vectors as float64 finds them: several times as fast in float32 where that can tell."""

    def __init__(self, centres: Tensor, offsets: Tensor, tolerance: float):
        self.centres, self.offsets, self.tolerance = centres, offsets, tolerance
        # Offsets as one dimension more: one product of matrices gives the costs, with nothing to add to them.
        self.table = torch.cat([-2 * centres.T, offsets[None]]).float().contiguous()
        # Rounding of the inputs and of a product of `dim` + 1 terms in any order.
        self.error = (centres.shape[1] + 5) * 2.0**-24
        self.reach, self.shift = 2 * float(centres.square().sum(1).max().sqrt()), float(offsets.abs().max())

    def __call__(self, vectors: Tensor) -> Tensor:
        rows = torch.cat([vectors.float(), vectors.new_ones(len(vectors), 1, dtype=torch.float32)], 1)
        certain = vectors.dtype == torch.float64
        look = self._on_cpu if vectors.device.type == "cpu" else self._on_gpu
        codes, lead = look(rows, certain)
        if certain:
            slack = self.error * (vectors.square().sum(1).sqrt() * self.reach + self.shift)
            unclear = (lead <= 2 * slack + self.tolerance).nonzero()[:, 0]
            if len(unclear):
                exact = torch.addmm(self.offsets, vectors[unclear], self.centres.T, alpha=-2)
                codes[unclear] = (exact <= exact.amin(1, keepdim=True) + self.tolerance).to(torch.uint8).argmax(1)
        return codes

    def _on_cpu(self, rows: Tensor, with_lead: bool) -> tuple[Tensor, Tensor]:
        """Codes int64 [rows] and, where asked for, by how much the second best is worse.

        A chunk's costs stay in the core's cache until they were looked at; numpy finds least values many times as fast as torch does.
        """
        num_codes = self.table.shape[1]
        size = max(1, CELLS_A_CHUNK // num_codes)
        codes, lead = np.empty(len(rows), dtype=np.int64), np.empty(len(rows), dtype=np.float32)
        table = torch.empty(min(size, len(rows)), num_codes)
        for at in range(0, len(rows), size):
            part = rows[at : at + size]
            costs = torch.mm(part, self.table, out=table[: len(part)]).numpy()
            found = costs.argmin(1)
            codes[at : at + size] = found
            if with_lead:
                places = np.arange(len(found))
                least = costs[places, found]
                costs[places, found] = np.inf
                lead[at : at + size] = costs.min(1) - least
        return torch.from_numpy(codes), torch.from_numpy(lead)

    def _on_gpu(self, rows: Tensor, with_lead: bool) -> tuple[Tensor, Tensor]:
        costs = rows @ self.table
        if not with_lead or costs.shape[1] == 1:
            return costs.argmin(1), costs.new_full((len(rows),), torch.inf)
        least = costs.topk(2, dim=1, largest=False)
        return least.indices[:, 0], least.values[:, 1] - least.values[:, 0]


def tally(vectors: Tensor, codes: Tensor, num_codes: int) -> tuple[Tensor, Tensor]:
    """Count and sum of the vectors of each code: [codes], [codes, dim]."""
    counts = torch.bincount(codes, minlength=num_codes).to(vectors.dtype)
    sums = torch.zeros(num_codes, vectors.shape[1], dtype=vectors.dtype, device=vectors.device)
    # Both add in the rows' order; on a GPU index_add_ would not, and equal seeds would give unequal codebooks.
    return counts, sums.index_add_(0, codes, vectors) if vectors.device.type == "cpu" else sums.index_put_(
        (codes,), vectors, accumulate=True
    )


def balancing_prices(vectors: Tensor, centres: Tensor, prices: Tensor, balance: float, team: Team = ALONE) -> Tensor:
    """Prices under which the centres serve more equal numbers of vectors, going on from `prices`.

    `balance` is the weight of the loads' divergence from equal ones, in mean squared distances: 0 leaves prices at zero, and at 1 the
    perplexity of the loads is usually above 0.9 of the codes.
    """
    if balance == 0:
        return torch.zeros_like(prices)
    parts = vectors.split(PRICED_AT_ONCE)
    lengths = centres.square().sum(1)

    def distances_of(part: Tensor) -> tuple[Tensor, Tensor]:
        """Of each row to each centre, beyond the one to its nearest; and the sum of those."""
        costs = torch.addmm(lengths, part, centres.T, alpha=-2)
        least = costs.min(1, keepdim=True).values
        return costs.sub_(least), (least[:, 0] + part.square().sum(1)).sum()

    tables = team.each(distances_of, team.mine(parts))
    spread = (team.total([least for _, least in tables], len(parts), prices[0]) / len(vectors)).clamp(min=1e-12)
    scale = SOFTNESS * spread
    # In place, as these are the largest tables of the whole step; cut off at e**-60, as numbers near the smallest make a CPU crawl.
    kernels = team.each(lambda table: table[0].div_(-scale).clamp_(min=-60).exp_(), tables)
    columns = (-prices / scale).clamp(-60, 60).exp()
    share, power = len(vectors) / len(centres), balance / (balance + SOFTNESS)
    for _ in range(SINKHORN_ROUNDS):
        loads = team.each(functools.partial(_load, columns), kernels)
        columns = (share / team.total(loads, len(parts), prices).clamp(min=TINY)).pow(power)
    return -scale * columns.log()


def _load(columns: Tensor, kernel: Tensor) -> Tensor:
    """What the rows of a kernel [rows, codes] put on each code, before its own factor: [codes]."""
    return kernel.T @ (1 / (kernel @ columns).clamp(min=TINY))


def first_of_each(vectors: Tensor) -> Tensor:
    """Indices of the first of each set of equal rows, ascending: int64 [distinct]."""
    rows = np.ascontiguousarray(vectors.cpu().numpy())
    rows = rows + rows.dtype.type(0)  # adding 0 makes -0 equal to 0
    _, first = np.unique(rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1])))[:, 0], return_index=True)
    return torch.from_numpy(np.sort(first)).to(vectors.device)


def fit(
    vectors: Tensor,
    num_codes: int,
    generator: torch.Generator,
    *,
    balance: float = 0.0,
    rounds: int = 20,
    start: Centres | None = None,
    team: Team = ALONE,
) -> Centres:
    """Centres of `vectors` (float32 [rows, dim], finite), going on from `start` or from random distinct rows.

    A centre that serves nobody moves half-way from a random vector (so into a crowd, most likely) to that vector's centre: that splits a
    large cluster instead of giving an outlier a centre of its own. With no more distinct vectors than codes each gets its own centre,
    and the spare ones lie close around, for items that come later, or stay where `start` has them.
    """
    vectors = sample(vectors, SAMPLE_PER_CENTRE * num_codes, generator)
    distinct = _enough_distinct(vectors, num_codes, generator)
    if len(distinct) <= num_codes:
        return _one_each(distinct, num_codes, generator) if start is None else _own_centres(distinct, start)
    priced = sample(vectors, PRICED_PER_CENTRE * num_codes, generator)
    if start is None:
        chosen = torch.randperm(len(distinct), generator=generator)[:num_codes].to(vectors.device)
        start = Centres(vectors=distinct[chosen], prices=vectors.new_zeros(num_codes))
    centres, prices = start.vectors, start.prices
    for _ in range(rounds):
        prices = balancing_prices(priced, centres, prices, balance, team)
        codes = nearest(vectors, centres, prices, team=team)
        counts, sums = tally(vectors, codes, num_codes)
        centres = torch.where(counts[:, None] > 0, sums / counts.clamp(min=1)[:, None], centres)
        idle = (counts == 0).nonzero()[:, 0]
        if len(idle):
            helped = torch.randint(len(vectors), (len(idle),), generator=generator).to(vectors.device)
            centres[idle] = (vectors[helped] + centres[codes[helped]]) / 2
            prices[idle] = 0
    return Centres(vectors=centres, prices=balancing_prices(priced, centres, prices, balance, team))


def _enough_distinct(vectors: Tensor, num_codes: int, generator: torch.Generator) -> Tensor:
    """Different rows: all of them, or of many rows more than `num_codes`, found among a few."""
    few = sample(vectors, DISTINCT_AMONG * num_codes, generator)
    found = few[first_of_each(few)]
    return found if len(found) > num_codes or len(few) == len(vectors) else vectors[first_of_each(vectors)]


def sample(vectors: Tensor, limit: int, generator: torch.Generator) -> Tensor:
    """At most `limit` of the rows, drawn evenly, in their order."""
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


def _own_centres(distinct: Tensor, start: Centres) -> Centres:
    """Each of few vectors becomes the centre that is nearest to it; of several that want one the nearest gets it, the others idle ones."""
    centres = start.vectors.clone()
    codes = nearest(distinct, centres, torch.zeros_like(start.prices))
    order = (distinct - centres[codes]).square().sum(1).argsort(stable=True).tolist()
    wanted, owned = codes.tolist(), dict[int, int]()
    waiting = [row for row in order if owned.setdefault(wanted[row], row) != row]
    idle = (code for code in range(len(centres)) if code not in owned)
    owned |= dict(zip(idle, waiting, strict=False))
    centres[list(owned)] = distinct[list(owned.values())]
    return Centres(vectors=centres, prices=torch.zeros_like(start.prices))
