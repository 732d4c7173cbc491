"""Heuristic candidate generators by name: where the conditions of conditional retrieval come from.

base.py is the interface and the registry; interest.py, item.py and board.py are the three that most sites already serve from. Every module of
this package is looked at for generators, so adding one means adding a file.
"""

from __future__ import annotations

import importlib
import pkgutil

from clrflow.bootstrap.generators.base import REGISTRY, Generator, View, register
from clrflow.bootstrap.settings import BootstrapSettings
from clrflow.contracts import CONDITION_TYPES
from clrflow.errors import ConfigError

__all__ = ["Generator", "View", "enabled_generators", "known_generators", "register"]


def known_generators(settings: BootstrapSettings) -> list[Generator]:
    """All generators of this package and of `bootstrap.generator_modules`, by condition type, then name."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    for name in settings.generator_modules:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ConfigError(
                f"bootstrap.generator_modules names {name!r}, which can't be imported ({error}); install it in the image, or take it out."
            ) from error
    unknown = sorted(set(settings.generator_options) - set(REGISTRY))
    if unknown:
        raise ConfigError(
            f"bootstrap.generator_options has {', '.join(unknown)}, and no generator is named so; there are {', '.join(sorted(REGISTRY))}."
        )
    made = [generator() for generator in REGISTRY.values()]
    return sorted(made, key=lambda one: (CONDITION_TYPES.index(one.condition_type), one.name))


def enabled_generators(settings: BootstrapSettings) -> list[Generator]:
    """The generators that the settings switch on, in the order in which their conditions stand in a request."""
    return [generator for generator in known_generators(settings) if generator.enabled(settings)]
