"""Who does the work of a training: the threads of one process, or several processes with a copy of the data each.

Work is cut into parts by the data alone, a part is computed by one thread, and results are put together in the parts' order. So what comes
out is the same to the last bit on one process and on many, and every process holds all of it: the same codebooks, the same weights.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

Part = TypeVar("Part")
Result = TypeVar("Result")
MAX_THREADS = 16
"""Threads of a process that work on parts, where torch itself has one (OMP_NUM_THREADS=1, as in every pod)."""
_thread = threading.local()


class Team:
    """`size` processes that do the same training, of which this is number `rank`."""

    def __init__(self, rank: int = 0, size: int = 1):
        self.rank, self.size = rank, size

    @classmethod
    def of_group(cls) -> Team:
        """All processes of torch.distributed's group."""
        return cls(dist.get_rank(), dist.get_world_size())

    def mine(self, parts: Sequence[Part]) -> Sequence[Part]:
        """The parts that this process works on."""
        return parts[self.rank :: self.size]

    def each(self, work: Callable[[Part], Result], parts: Sequence[Part]) -> list[Result]:
        """`work` of each of these parts, by threads of this process."""
        if len(parts) <= 1 or torch.get_num_threads() > 1 or getattr(_thread, "working", False):
            return [work(part) for part in parts]
        with_gradient = torch.is_grad_enabled()  # a thread doesn't inherit it

        def guarded(part: Part) -> Result:
            _thread.working = True  # work that is cut into parts again stays on its thread: waiting for others, it would block them
            with torch.set_grad_enabled(with_gradient):
                return work(part)

        return list(_threads().map(guarded, parts))

    def total(self, results: Sequence[Tensor], num_parts: int, like: Tensor) -> Tensor:
        """Sum over all processes' parts, in the parts' order; `results` are of this process's parts and each has the shape of `like`."""
        table = torch.zeros(num_parts, *like.shape, dtype=like.dtype, device=like.device)
        if results:
            table[self.rank :: self.size] = torch.stack(list(results))
        return self._shared(table).sum(0)

    def rows(self, results: Sequence[Tensor], lengths: Sequence[int], like: Tensor) -> Tensor:
        """All processes' parts one after the other; a part has so many rows of the shape and dtype of `like`."""
        if self.size == 1:
            return torch.cat(list(results)) if results else like.new_zeros(0, *like.shape)
        table = torch.zeros(sum(lengths), *like.shape, dtype=like.dtype, device=like.device)
        for place, result in zip(self.mine(table.split(list(lengths))), results, strict=True):
            place.copy_(result)
        return self._shared(table)

    def _shared(self, table: Tensor) -> Tensor:
        # A place is zero for all processes but one, so the order in which these are added can't matter.
        if self.size > 1:
            dist.all_reduce(table)
        return table


ALONE = Team()


@functools.cache
def _threads() -> ThreadPoolExecutor:
    cores = len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # which the processes of a machine share
    return ThreadPoolExecutor(max_workers=max(1, min(MAX_THREADS, cores)), thread_name_prefix="semantic-ids")


@contextlib.contextmanager
def one_thread_a_part() -> Iterator[None]:
    """Keeps torch to one thread an operation, as otherwise its results would depend on how many it has."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
