"""All rows and claims of the benchmark in one run; see the package's docstring."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness import FULL, Claim, Result, Row, main, not_measured
from benchmarks.processes import Measured, measured
from benchmarks.semantic_ids.worlds import JOBS, ROOT, World, amazon, films
from clrflow import storage
from clrflow.errors import BadInput
from clrflow.progress import say

TEXTS: dict[str, Callable[[], World]] = {
    "beauty": lambda: amazon("beauty"),
    "sports": lambda: amazon("sports"),
    "toys": lambda: amazon("toys"),
    "movielens titles": films,
}
LEVELS, CODES = 4, 256
MILLION, DEEP_LEVELS, DEEP_CODES = 1_000_000, 5, 2048
BALANCES = (0.0, 0.03, 0.1, 0.3, 1.0, 3.0)
WIDTHS = (64, 128)
ENCODED = 65_536
STEADY = 20_000
"""Synthetic items whose ids are made several times: so many that every kind of work is cut into parts."""
PUBLISHED_COLLISION = 0.0011
SEED = 0

OURS, QUICK, FAISS = "clrflow", "clrflow without epochs", "faiss residual k-means"

PEERS: dict[str, tuple[str, dict[str, Any], str]] = {
    FAISS: ("faiss", {}, "faiss"),
    "vector-quantize-pytorch ResidualVQ": ("residual_vq", {}, "vector_quantize_pytorch"),
    "semantic-id RQKMeans": ("rq_kmeans", {}, "semantic_id"),
    "semantic-id RQVAE": ("rq_vae", {"epochs": 300}, "semantic_id"),
}
"""Name → job, its options, and the package that must be there."""
ON_A_MILLION = (FAISS, "vector-quantize-pytorch ResidualVQ", "semantic-id RQKMeans")
"""Peers that end within half an hour there."""

Found = tuple[list[Row], list[Claim]]


def measure(size: str) -> Result:
    """Every part's rows and claims."""
    rows: list[Row] = []
    claims: list[Claim] = []
    for found, claimed in (texts(), frontier(), million(size), encoding(), stability()):
        rows += found
        claims += claimed
    return Result(rows=rows, claims=claims)


def figures(job: str, **arguments: Any) -> Measured:
    """A job in its own process; see processes.measured. Peers have a thread a core; ours makes its own."""
    is_peer = job in {name for name, _, _ in PEERS.values()} or not str(arguments.get("who", "ours")).startswith("ours")
    return measured(JOBS, job, ROOT, arguments, threads=len(os.sched_getaffinity(0)) if is_peer else 1)


def saved(name: str) -> tuple[str, str]:
    """Folder of a set of texts and "", or "" and why it can't be had here."""
    folder = ROOT / name.replace(" ", "-")
    try:
        TEXTS[name]().save(folder)
    except BadInput as error:
        say(f"{name}: left out: {error}")
        return "", str(error).splitlines()[0]
    return str(folder), ""


def without(package: str) -> str:
    """Why a peer can't run here; "" where it can."""
    return "" if importlib.util.find_spec(package) else f"{package}, which isn't installed (the extra clrflow[bench])"


def tokenized(job: str, world: str, levels: int, codes: int, **options: Any) -> dict[str, Any]:
    """A row: what a tokenizer took and what its codes are worth."""
    folder = str(Path(world) / storage.fingerprint_of(job, levels, codes, options)[:8])
    made = figures(job, world=world, folder=folder, levels=levels, codes=codes, seed=SEED, **options)
    judged = figures("judge", world=world, folder=folder, codes=codes).facts
    by_level = "  ".join(f"{used:,} {evenness:.2f}" for used, evenness in zip(judged["used"], judged["evenness"], strict=True))
    return {
        "cosine": judged["cosine"], "codes used, perplexity / used": by_level, "collision": judged["collision"], "floor": judged["floor"],
        "collision after": judged["collision_after"], "agreement 1, 2": _pair(judged["agreement"]), "random": judged["agreement_random"],
        "train s": made.facts["train_s"], "encode s": made.facts["encode_s"], "s": made.seconds, "peak GB": made.peak_gb,
        "_used": judged["used"], "_evenness": judged["evenness"],
    }  # fmt: skip


def _pair(agreement: list[float | None]) -> str:
    return "  ".join("–" if value is None else f"{value:.4f}" for value in agreement[:2])


def _shown(part: str, name: str, row: Mapping[str, Any]) -> Row:
    return {"part": part, "who": name, **{key: value for key, value in row.items() if not key.startswith("_")}}


def texts() -> Found:
    """Ours and all peers on each set of texts; the promises are about Beauty."""
    rows: list[Row] = []
    claims: list[Claim] = []
    for name in TEXTS:
        world, missing = saved(name)
        part = f"{name}, {LEVELS} × {CODES}"
        if missing:
            rows.append({"part": part, "who": f"skipped, {missing}"})
        else:
            found = {OURS: tokenized("clrflow", world, LEVELS, CODES), QUICK: tokenized("clrflow", world, LEVELS, CODES, max_epochs=0)}
            for peer, (job, options, package) in PEERS.items():
                if why := without(package):
                    rows.append({"part": part, "who": f"{peer}: skipped, {why}"})
                else:
                    found[peer] = tokenized(job, world, LEVELS, CODES, **options)
            rows += [_shown(part, who, row) for who, row in found.items()]
        if name == "beauty":
            claims = promises(None if missing else found)
    return rows, claims


def promises(found: Mapping[str, Mapping[str, Any]] | None) -> list[Claim]:
    """What is promised on Beauty; None where it can't be had."""
    ours = (found or {}).get(OURS)
    faiss = (found or {}).get(FAISS)
    quick = (found or {}).get(QUICK)
    peers = [row for who, row in (found or {}).items() if who not in (OURS, QUICK)]
    alike = [row["train s"] + row["encode s"] for row in peers if quick and row["cosine"] >= 0.98 * quick["cosine"]]
    texts, package = "Amazon Beauty, which isn't here", f"{FAISS} and Amazon Beauty"

    def claim(name: str, goal: str, value: float | None, holds: Callable[[float], bool], needs: str = texts) -> Claim:
        missing = value is None
        return Claim(
            name=f"beauty: {name}",
            goal=goal,
            value=value,
            holds=None if value is None else holds(value),
            needs=needs if missing else "small",
        )

    return [
        claim("fewest codes used of a level", f"{CODES}", min(ours["_used"]) if ours else None, lambda value: value == CODES),
        claim(
            "reconstruction cosine over that of faiss", "≥ 0.98", ours["cosine"] / faiss["cosine"] if ours and faiss else None,
            lambda value: value >= 0.98, package,
        ),
        claim("perplexity over codes used, level 1", "≥ 0.90", ours["_evenness"][0] if ours else None, lambda value: value >= 0.9),
        claim(
            "perplexity over codes used, least of the levels below", "≥ 0.80", min(ours["_evenness"][1:]) if ours else None,
            lambda value: value >= 0.8,
        ),
        claim(
            "collision above the floor, before ids are unique", f"≤ {PUBLISHED_COLLISION}", ours["collision"] - ours["floor"] if ours else None,
            lambda value: value <= PUBLISHED_COLLISION,
        ),
        claim("collision of the ids", "0", ours["collision after"] if ours else None, lambda value: value == 0),
        claim(
            "training and encoding without epochs over the fastest peer of equal cosine (within 2 %)", "≤ 1",
            (quick["train s"] + quick["encode s"]) / min(alike) if quick and alike else None, lambda value: value <= 1, package,
        ),
    ]  # fmt: skip


def frontier() -> Found:
    """What balance costs in reconstruction, and what a narrower latent does."""
    world, missing = saved("beauty")
    part = f"frontier on beauty, {LEVELS} × {CODES}"
    if missing:
        return [{"part": part, "who": f"skipped, {missing}"}], []
    rows: list[Row] = []
    for width in (64, 128, 256):
        for balance in BALANCES if width == 256 else (1.0,):
            row = tokenized("clrflow", world, LEVELS, CODES, balance=balance, latent_dim=width)
            rows.append(_shown(part, f"balance {balance:g}, latent {width}", row))
    return rows, []


def million(size: str) -> Found:
    """Five levels of 2,048 codes on a million vectors of 128 dimensions."""
    part = f"{MILLION:,} synthetic vectors, {DEEP_LEVELS} × {DEEP_CODES}"
    goals = {"least share of codes used": "≥ 0.99", "training, s": "≤ 600", "peak memory, GB": "≤ 4", "collision of the ids": "0"}
    if size != FULL:
        return [], [not_measured(f"a million: {name}", goal) for name, goal in goals.items()]
    world = str(ROOT / "synthetic")
    figures("generate", folder=world, num_items=MILLION)
    found = {OURS: tokenized("clrflow", world, DEEP_LEVELS, DEEP_CODES, max_epochs=5)}
    for peer in ON_A_MILLION:
        job, options, package = PEERS[peer]
        if not without(package):
            found[peer] = tokenized(job, world, DEEP_LEVELS, DEEP_CODES, **options)
    ours = found[OURS]
    used, train, peak, after = min(ours["_used"]) / DEEP_CODES, ours["train s"], ours["peak GB"], ours["collision after"]
    hold = (used >= 0.99, train <= 600, peak <= 4, after == 0)
    claims = [
        Claim(name=f"a million: {name}", goal=goal, value=value, holds=holds, needs=FULL)
        for (name, goal), value, holds in zip(goals.items(), (used, train, peak, after), hold, strict=True)
    ]
    return [_shown(part, who, row) for who, row in found.items()], claims


def encoding() -> Found:
    """Items a second of the quantisers alone, with the same codebooks and width."""
    rows: list[Row] = []
    claims: list[Claim] = []
    for width in WIDTHS:
        peers = [job for job, package in (("faiss", "faiss"), ("residual_vq", "vector_quantize_pytorch")) if not without(package)]
        rates = {
            who: ENCODED / figures("encode", who=who, dim=width, num_items=ENCODED, levels=DEEP_LEVELS, codes=DEEP_CODES).seconds
            for who in ("ours", "ours float32", *peers)
        }
        rows += [{"part": "encoding", "width": width, "who": who, "items / s": rate} for who, rate in rates.items()]
        ratio = rates["ours"] / max(rates[peer] for peer in peers) if peers else None
        if width == WIDTHS[0]:
            claims.append(
                Claim(name=f"items encoded a second, width {width}", goal="≥ 60,000", value=rates["ours"], holds=rates["ours"] >= 60_000)
            )
        name, needs = f"encoding over the fastest peer, width {width}", "small" if peers else "a peer (the extra clrflow[bench])"
        claims.append(Claim(name=name, goal="≥ 1.2", value=ratio, holds=None if ratio is None else ratio >= 1.2, needs=needs))
    return rows, claims


def stability() -> Found:
    """Whether ids are what they were, and how many items keep their first codes when a tenth more items come."""
    world = str(ROOT / "steady")
    figures("generate", folder=world, num_items=STEADY)
    found = figures("stability", world=world, folder=f"{world}/tokenizer", levels=LEVELS, codes=2 * CODES).facts
    rows: list[Row] = [{"part": "stability", "what": name, "equal": str(value)} for name, value in found.items()]
    claims = [Claim(name=f"ids equal: {name}", goal="1", value=float(value), holds=value) for name, value in found.items()]
    for name in ("beauty", "movielens titles"):
        texts, missing = saved(name)
        for how, kept in () if missing else figures("drift", world=texts, levels=LEVELS, codes=CODES, share=0.9).facts.items():
            shares = {f"first {depth}": share for depth, share in enumerate(kept, 1)}
            rows.append({"part": "items that keep their codes when a tenth more come", "of": name, "ids are": how, **shares})
    return rows, claims


if __name__ == "__main__":
    sys.exit(main("semantic_ids", measure))
