"""One process as a whole process group, so that sharded models run inside the test process."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from clrflow.launch.local import free_port


@pytest.fixture(scope="session")
def group() -> Iterator[None]:
    """A gloo group of this process alone."""
    torch.set_num_threads(1)
    names = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    os.environ.update(names)
    dist.init_process_group("cpu:gloo")
    yield
    dist.destroy_process_group()
    for name in names:
        os.environ.pop(name)
