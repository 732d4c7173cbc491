"""The KServe v1 body in and out: {"instances": [{"user": 7, "conditions": ["interest:5"], "k": 10}]} → {"predictions": [...]}.

Everything is checked before anything is computed, and a refusal names the place, the value and the remedy. Ids are JSON integers, exact
to 64 bits: a number with a fraction or an exponent is refused, as it has passed through a float somewhere.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from clrflow.errors import BadInput
from clrflow.serving.merge import merge
from clrflow.serving.query import MAX_CONDITIONS, MAX_K, Condition, Ranked, Retriever, parse_condition
from clrflow.serving.settings import ServeSettings

DEFAULT_K = 10
FIELDS = ("user", "conditions", "k")
MAX_SHOWN = 60
"""Characters of a wrong value that a message repeats."""
EXAMPLE = '{"instances": [{"user": 7, "conditions": ["interest:5"], "k": 10}]}'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Instance:
    """One user's question."""

    user: int
    conditions: list[Condition]
    """At least one; `none` where the request named none."""
    k: int


def parse_request(body: bytes, settings: ServeSettings) -> list[Instance]:
    """The instances of a body; raises BadInput for anything that isn't exactly what the module's docstring shows."""
    try:
        request = json.loads(body)
    except (ValueError, RecursionError) as error:
        # ValueError: no JSON, no UTF-8, or a number of thousands of digits.
        raise BadInput(f"the body isn't JSON that can be read ({_shorten(str(error))}); send {EXAMPLE}.") from None
    if not isinstance(request, dict) or set(request) != {"instances"}:
        found = f"the fields {_shown(sorted(request))}" if isinstance(request, dict) else _shown(request)
        raise BadInput(f'the body holds {found}; it takes one field, "instances": send {EXAMPLE}.')
    rows = request["instances"]
    if not isinstance(rows, list) or not rows:
        raise BadInput(f"instances={_shown(rows)}: it must be a list of at least one; send {EXAMPLE}.")
    if len(rows) > settings.max_instances:
        raise BadInput(f"instances has {len(rows)} entries; a request takes {settings.max_instances} at most: split it.")
    instances = [_instance(row, f"instances[{at}]") for at, row in enumerate(rows)]
    asked = sum(len(instance.conditions) * instance.k for instance in instances)
    if asked > settings.max_items:
        raise BadInput(
            f"the instances ask for {asked} items (conditions times k, summed); a request takes {settings.max_items} at most: "
            "lower k, or split the request."
        )
    return instances


def _instance(row: Any, place: str) -> Instance:
    if not isinstance(row, dict):
        raise BadInput(f'{place}={_shown(row)}: it must be an object such as {{"user": 7, "conditions": ["interest:5"], "k": 10}}.')
    unknown = [name for name in row if name not in FIELDS]
    if unknown:
        raise BadInput(f"{place}.{_shorten(unknown[0])}: there is no such field; an instance has {', '.join(FIELDS)}.")
    if "user" not in row:
        raise BadInput(f'{place} has no "user"; give the user\'s id as an integer.')
    user = _integer(row["user"], f"{place}.user")
    if not -(2**63) <= user < 2**63:
        raise BadInput(f"{place}.user={_shown(user)}: it does not fit 64 bits, so no table holds it; ids are int64.")
    k = _integer(row.get("k", DEFAULT_K), f"{place}.k")
    if not 1 <= k <= MAX_K:
        raise BadInput(f"{place}.k={_shown(k)}: ask for 1 to {MAX_K} items.")
    texts = row.get("conditions", [])
    if not isinstance(texts, list):
        raise BadInput(f'{place}.conditions={_shown(texts)}: it must be a list such as ["interest:5", "board:17"].')
    if len(texts) > MAX_CONDITIONS:
        raise BadInput(f"{place}.conditions has {len(texts)} entries; at most {MAX_CONDITIONS} are answered at once: split them.")
    conditions = [_condition(text, f"{place}.conditions[{at}]") for at, text in enumerate(texts)]
    return Instance(user=user, conditions=conditions or [parse_condition("none")], k=k)


def _integer(value: Any, place: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadInput(f"{place}={_shown(value)}: it must be an integer, written without quotes, fraction or exponent.")
    return value


def _condition(text: Any, place: str) -> Condition:
    if not isinstance(text, str) or len(text) > MAX_SHOWN:
        raise BadInput(f'{place}={_shown(text)}: it must be a text such as "none", "interest:5", "item:50" or "board:17".')
    try:
        return parse_condition(text)
    except BadInput as error:
        raise BadInput(f"{place}: {error}") from None


def answer(retriever: Retriever, instances: list[Instance]) -> list[dict[str, Any]]:
    """A prediction for each instance; raises BadInput, with the instance's place, for a condition that the index doesn't know."""
    predictions = []
    for at, instance in enumerate(instances):
        try:
            ranked = retriever.search(instance.user, instance.conditions, instance.k)
        except BadInput as error:
            raise BadInput(f"instances[{at}]: {error}") from None
        predictions.append(_prediction(ranked, instance.k, retriever.knows(instance.user)))
    return predictions


def _prediction(ranked: list[Ranked], k: int, known: bool) -> dict[str, Any]:
    lists = [list(zip(found.item_ids.tolist(), found.scores.tolist(), strict=True)) for found in ranked]
    return {
        **_columns(merge(lists, k)),
        "by_condition": [{"condition": str(found.condition), **_columns(rows)} for found, rows in zip(ranked, lists, strict=True)],
        "known_user": known,
    }


def _columns(rows: list[tuple[int, float]]) -> dict[str, Any]:
    # Scores are float32: more than seven decimals of a cosine are noise that only makes answers longer.
    return {"items": [item_id for item_id, _ in rows], "scores": [round(score, 7) for _, score in rows]}


def encode(value: Any) -> bytes:
    """JSON in ASCII, so that no text a caller sent can break the answer; NaN is refused, as JSON has none."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii")


def _shown(value: Any) -> str:
    return _shorten(repr(value))


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"
