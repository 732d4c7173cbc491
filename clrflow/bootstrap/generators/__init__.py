"""Heuristic candidate generators by name: where the conditions of conditional retrieval come from.

base.py is the interface; interest.py, item.py and board.py are the three that most sites already serve from.
"""

from __future__ import annotations

from clrflow.bootstrap.generators.base import Generator, View
from clrflow.bootstrap.generators.board import BoardGenerator
from clrflow.bootstrap.generators.interest import InterestGenerator
from clrflow.bootstrap.generators.item import ItemGenerator
from clrflow.bootstrap.settings import BootstrapSettings

__all__ = ["BUILT_IN", "Generator", "View", "enabled_generators"]

BUILT_IN: tuple[type[Generator], ...] = (InterestGenerator, ItemGenerator, BoardGenerator)


def enabled_generators(settings: BootstrapSettings) -> list[Generator]:
    """The generators that the settings switch on, in the order in which their conditions stand in a request."""
    generators: list[Generator] = []
    if settings.interest.enabled:
        generators.append(InterestGenerator())
    if settings.item.enabled:
        generators.append(ItemGenerator())
    if settings.board.enabled:
        generators.append(BoardGenerator())
    return generators
