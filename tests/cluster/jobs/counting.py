"""Counts aloud, ten a second, then writes its output: `counting OUTPUT COUNT`. Saves what it has and ends when nobody follows it any more."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from clrflow.launch.lease import LEASE, LeaseWatch
from clrflow.launch.torchrun import ABANDONED, tell_end, worker_begins

worker_begins()
output, last = Path(sys.argv[1]), int(sys.argv[2])
rank = int(os.environ["RANK"])
checkpoint = output.with_name("counted")


def abandoned() -> None:
    tell_end(ABANDONED, "nobody follows; saved")
    os._exit(ABANDONED)


if rank == 0 and os.environ.get(LEASE):
    LeaseWatch(os.environ[LEASE], abandoned).start()
first = int(checkpoint.read_text()) if checkpoint.exists() else 0
for number in range(first, last):
    if rank == 0:
        checkpoint.write_text(str(number))
        print(f"number {number:05d}", flush=True)
    time.sleep(0.1)
if rank == 0:
    output.write_text("{}")
