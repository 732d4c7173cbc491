"""Whether something has held for a while: what a status says for a moment is not yet a fact."""

from __future__ import annotations

import time


class Lasting:
    """Remembers since when each named condition holds, on this process's own clock."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def __call__(self, what: str, holds: bool, seconds: float) -> bool:
        """True once `what` has held at every look for `seconds`."""
        since = self._since.setdefault(what, time.monotonic())
        if not holds:
            del self._since[what]
        return holds and time.monotonic() - since >= seconds
