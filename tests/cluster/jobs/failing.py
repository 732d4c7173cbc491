"""Says what it does and fails, every time: `failing EXIT_CODE`."""

from __future__ import annotations

import sys

from clrflow.launch.torchrun import worker_begins

worker_begins()
print("reading shard 7", flush=True)
print("no such table: shard 7", flush=True)
sys.exit(int(sys.argv[1]))
