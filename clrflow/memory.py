"""Has freed memory go back to the system, so that a step's peak is what it needs at once and not all that it has ever held."""

from __future__ import annotations

import ctypes

import pyarrow as pa

GIVE_BACK_FROM = 1 << 20
"""Bytes from which an allocation is a mapping of its own. glibc would raise it to the largest block ever freed, up to 32 MiB: arrays of a few
megabytes then lie among lasting ones on the heap and leave holes there. Much smaller ones would cost more page faults than they save."""
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt."""


def give_back_freed_memory() -> None:
    """For the rest of the process; what is allocated already stays as it is.

    Arrow allocates from the system instead of from pools of its own. Where the C library isn't glibc, that is all.
    """
    pa.set_memory_pool(pa.system_memory_pool())
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(MMAP_THRESHOLD, GIVE_BACK_FROM)
        mallopt(TRIM_THRESHOLD, GIVE_BACK_FROM)
