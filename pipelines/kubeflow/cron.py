"""Kubeflow's cron expressions: six fields, the first of them seconds. Checked here, since the server takes some wrong ones and never fires."""

from __future__ import annotations

import re

from clrflow.configure import refuse_macros
from clrflow.errors import BadInput

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS: tuple[tuple[str, int, int, tuple[str, ...]], ...] = (
    ("second", 0, 59, ()),
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of month", 1, 31, ()),
    ("month", 1, 12, _MONTHS),
    ("day of week", 0, 6, _DAYS),
)
_PART = re.compile(r"(?P<range>\*|\?|\w+(?:-\w+)?)(?:/(?P<step>\d+))?")


def check_cron(cron: str) -> str:
    """The expression with single spaces; raises BadInput naming the field and what to write."""
    refuse_macros({"cron": cron})
    fields = cron.split()
    if len(fields) == 5:
        raise BadInput(f"--cron {cron!r} has 5 fields, and Kubeflow's has 6, of which the first is seconds; write '0 {cron.strip()}'.")
    if len(fields) != 6:
        raise BadInput(
            f"--cron {cron!r} has {len(fields)} field(s); write six: second minute hour day-of-month month day-of-week, e.g. '0 0 6 * * *'."
        )
    for text, (name, low, high, words) in zip(fields, _FIELDS):
        for part in text.split(","):
            _check_part(cron, part, name, low, high, words)
    if not fields[0].isdigit():
        raise BadInput(
            f"--cron {cron!r} fires many times a minute, as its first field, seconds, is {fields[0]!r}; write one second there, e.g. 0."
        )
    return " ".join(fields)


def _check_part(cron: str, part: str, name: str, low: int, high: int, words: tuple[str, ...]) -> None:
    found = _PART.fullmatch(part)
    values = [] if found is None or found["range"] in "*?" else [_value(text, low, words) for text in found["range"].split("-")]
    bad = found is None or any(value is None or not low <= value <= high for value in values)
    bad = bad or (len(values) == 2 and None not in values and values[0] > values[1])  # type: ignore[operator]
    bad = bad or (found is not None and found["step"] is not None and int(found["step"]) == 0)
    if bad:
        also = f" or {words[0]} to {words[-1]}" if words else ""
        raise BadInput(f"--cron {cron!r}: {part!r} is no {name}; write {low} to {high}{also}, a range 2-4, a list 2,4, a step */2 or *.")


def _value(text: str, low: int, words: tuple[str, ...]) -> int | None:
    if text.isdigit():
        return int(text)
    return words.index(text.lower()) + low if text.lower() in words else None
