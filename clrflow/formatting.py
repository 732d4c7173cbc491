"""How values are shown to people, on pages and in tables; light, as every command imports it."""

from __future__ import annotations

from typing import Any


def show(value: Any) -> str:
    """A value as a person reads it: thousands separated, four decimals where they matter, a dash for nothing."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4f}" if abs(value) < 1 else f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
