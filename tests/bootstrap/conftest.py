"""Fixtures of the bootstrap tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bootstrap.worlds import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(folder=tmp_path)


@pytest.fixture
def make_world(tmp_path: Path) -> Callable[[str], World]:
    """A factory by name, for tests that compare two worlds."""
    return lambda name: World(folder=tmp_path / name)
