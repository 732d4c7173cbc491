"""One look at the cluster and what came of it; the launcher raises what is missing, `clrflow doctor --cluster` prints all."""

from __future__ import annotations

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One look; `note` is worth knowing but stops nothing."""

    name: str
    state: Literal["ok", "note", "missing"]
    found: str
    remedy: str = ""
