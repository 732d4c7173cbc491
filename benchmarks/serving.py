"""Requests a second and latencies of a server on the demo's index, with one and with four conditions, for one caller and for eight.

The callers are threads of a process beside the server's and share its cores, as they would on a laptop. Needs `make demo`, or a workspace
that has published named by CLRFLOW_BENCH_WORKSPACE. The claim is the design's: three more conditions cost little, as the history is
encoded once.
"""

from __future__ import annotations

import http.client
import json
import multiprocessing
import os
import random
import re
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np

from benchmarks.harness import FULL, Claim, Result, main
from clrflow.index.bundle import load

WORKSPACE = os.environ.get("CLRFLOW_BENCH_WORKSPACE", "demo/workspace")
SECONDS = {"small": 8.0, FULL: 60.0}
WARM_UP_S = 2.0
CONDITIONS, CALLERS = (1, 4), (1, 8)


def measure(size: str) -> Result:
    """Start a server, ask it for a while in each way."""
    bundle = load(WORKSPACE)
    users = bundle.table("user_states")["user_id"].to_pylist()
    interests = bundle.table("interests")["interest_id"].to_pylist()
    command = [sys.executable, "-m", "clrflow.serving", "--index", WORKSPACE, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}) as server:
        try:
            port = _port_when_ready(server)
            rows = [_row(port, users, interests, conditions, callers, size) for callers in CALLERS for conditions in CONDITIONS]
        finally:
            server.terminate()
            server.communicate()
    for row in rows:
        row["items"], row["users"] = bundle.num_items, len(users)
    alone = {row["conditions"]: row["p50, ms"] for row in rows if row["callers"] == 1}
    ratio = alone[4] / alone[1]
    claim = Claim(name="p50 with four conditions / with one, one caller", goal="at most 2", value=ratio, holds=ratio <= 2)
    return Result(rows=rows, claims=[claim])


def _port_when_ready(server: subprocess.Popen[str]) -> int:
    assert server.stdout is not None
    port = 0
    for line in server.stdout:
        found = re.search(r"listening on \S+:(\d+);", line)
        port = int(found[1]) if found else port
        if "is served" in line:
            return port
    raise SystemExit(f"the server of {WORKSPACE} ended with {server.wait()} before it was ready; run make demo first.")


def _row(port: int, users: list[int], interests: list[int], conditions: int, callers: int, size: str) -> dict[str, Any]:
    # In a process of its own, so that the callers' Python doesn't share a lock with this one.
    cpu_before, count_before = _metrics(port)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        seconds, elapsed = pool.apply(_ask, (port, users, interests, conditions, callers, SECONDS[size]))
    cpu, count = _metrics(port)
    p50, p99 = np.percentile(seconds, [50, 99]) * 1000
    return {
        "conditions": conditions, "callers": callers, "requests/s": round(len(seconds) / elapsed, 1), "p50, ms": round(float(p50), 1),
        "p99, ms": round(float(p99), 1), "server's CPU, ms/request": round((cpu - cpu_before) / (count - count_before) * 1000, 1),
    }  # fmt: skip


def _metrics(port: int) -> tuple[float, float]:
    """CPU seconds that the server has used, and requests that it has answered."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    cpu, count = (
        re.search(rf"^{name} (\S+)$", text, re.MULTILINE) for name in ("process_cpu_seconds_total", "clrflow_request_seconds_count")
    )
    assert cpu is not None and count is not None  # noqa: PT018
    return float(cpu[1]), float(count[1])


def _ask(port: int, users: list[int], interests: list[int], conditions: int, callers: int, seconds: float) -> tuple[list[float], float]:
    """Latencies of all requests after the warm-up, and the time in which they were made."""
    latencies: list[float] = []
    begin = time.perf_counter() + WARM_UP_S

    def call(seed: int) -> None:
        draw = random.Random(seed)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        while time.perf_counter() < begin + seconds:
            chosen = [f"interest:{one}" for one in draw.sample(interests, conditions)]
            body = json.dumps({"instances": [{"user": draw.choice(users), "conditions": chosen, "k": 10}]})
            started = time.perf_counter()
            connection.request("POST", "/v1/models/clrflow:predict", body)
            response = connection.getresponse()
            answer = response.read()
            if response.status != 200:
                raise RuntimeError(f"{response.status}: {answer.decode()}")
            if started >= begin:
                latencies.append(time.perf_counter() - started)

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return latencies, time.perf_counter() - begin


if __name__ == "__main__":
    sys.exit(main("serving", measure))
