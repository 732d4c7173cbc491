import ctypes
import subprocess
import sys

import pytest

HOLDS_AFTER_FREEING = """
import sys
import numpy as np
import psutil
from clrflow.memory import give_back_freed_memory

if sys.argv[1] == "yes":
    give_back_freed_memory()
np.ones(30 << 20, np.uint8)  # once freed, blocks of its size would come from the heap
before = psutil.Process().memory_info().rss
large, lasting = [], []
for _ in range(100):
    large.append(np.ones(4 << 20, np.uint8))
    lasting.append(np.ones(1 << 16, np.uint8))
del large
print(psutil.Process().memory_info().rss - before)
"""


def held_after_freeing(asked: str) -> int:
    done = subprocess.run([sys.executable, "-c", HOLDS_AFTER_FREEING, asked], check=True, capture_output=True, text=True, timeout=60)
    return int(done.stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library isn't glibc")
def test_large_arrays_among_small_ones_go_back_to_the_system_when_freed() -> None:
    assert held_after_freeing("yes") < 20e6
    assert held_after_freeing("no") > 200e6, "the C library gives it back by itself now; clrflow/memory.py can go"
