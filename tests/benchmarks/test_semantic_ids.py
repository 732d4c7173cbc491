"""The benchmark of semantic ids: its vectors, its peers and its claims, at a size that takes a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.semantic_ids import __main__ as benchmark
from benchmarks.semantic_ids import jobs
from benchmarks.semantic_ids.peers.by_faiss import fit
from benchmarks.semantic_ids.picture import draw, least_even
from benchmarks.semantic_ids.worlds import TOPICS, World, amazon, synthetic
from clrflow.errors import BadInput


@pytest.fixture(scope="module")
def world() -> World:
    return synthetic(3000)


@pytest.fixture(scope="module")
def saved(world: World, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("world")
    world.save(folder)
    return str(folder)


def test_synthetic_items_of_one_topic_are_alike(world: World) -> None:
    assert np.linalg.norm(world.embeddings, axis=1) == pytest.approx(np.ones(3000))
    assert len(np.unique(world.groups)) > TOPICS / 2
    order = np.argsort(world.groups, kind="stable")
    pairs = np.stack([order[:-1], order[1:]])[:, world.groups[order[:-1]] == world.groups[order[1:]]]
    alike = (world.embeddings[pairs[0]] * world.embeddings[pairs[1]]).sum(1).mean()
    others = (world.embeddings[:1500] * world.embeddings[1500:]).sum(1).mean()
    assert alike > others + 0.3


def test_ours_and_a_peer_are_judged_alike(saved: str, tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"world": saved, "levels": 3, "codes": 64}
    found = {}
    for name, job in (("ours", jobs.clrflow), ("faiss", jobs.faiss)):
        made = job(folder=str(tmp_path / name), seed=0, **sizes)
        assert made["seconds"] >= made["train_s"] > 0
        found[name] = jobs.judge(saved, str(tmp_path / name), 64)
    assert min(found["ours"]["used"]) == 64
    assert min(found["ours"]["evenness"]) > 0.9 > min(found["faiss"]["evenness"])
    assert found["ours"]["collision_after"] == 0
    assert found["faiss"]["collision_after"] is None
    assert all(0.4 < one["cosine"] < 1 and one["agreement"][0] > one["agreement_random"] for one in found.values())


def test_faiss_codes_what_is_left_over(world: World) -> None:
    fitted = fit(world.embeddings, 2, 16, seed=0)
    codes = fitted.encode(world.embeddings)
    one_level = fit(world.embeddings, 1, 16, seed=0)
    assert np.array_equal(one_level.encode(world.embeddings)[:, 0], codes[:, 0])
    errors = [np.square(world.embeddings - one.decode(one.encode(world.embeddings))).sum() for one in (one_level, fitted)]
    assert errors[1] < errors[0]


@pytest.mark.parametrize("peer", ["residual_vq", "rq_kmeans", "rq_vae"])
def test_peers_of_other_packages_decode_what_they_encode(peer: str, saved: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("vector_quantize_pytorch" if peer == "residual_vq" else "semantic_id")
    if peer == "residual_vq":
        monkeypatch.setattr("benchmarks.semantic_ids.peers.by_vq.STEPS", 20)
    options: dict[str, Any] = {"epochs": 3} if peer == "rq_vae" else {}
    jobs.JOBS[peer](world=saved, folder=str(tmp_path), levels=2, codes=32, seed=0, **options)
    found = jobs.judge(saved, str(tmp_path), 32)
    assert max(found["used"]) <= 32
    assert found["cosine"] > (0 if peer == "rq_vae" else 0.2)  # three epochs are a start for an autoencoder, and no more


def test_ids_are_equal_however_they_were_made(saved: str, tmp_path: Path) -> None:
    found = jobs.stability(saved, str(tmp_path), levels=3, codes=16)
    assert found == dict.fromkeys(found, True)
    assert len(found) == 6


def test_texts_that_are_not_here_are_left_out_with_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("benchmarks.semantic_ids.worlds.SHARED", tmp_path)
    with pytest.raises(BadInput, match="amazon-beauty"):
        amazon("beauty")
    claims = benchmark.promises(None)
    assert {claim.holds for claim in claims} == {None}
    assert len(claims) == 7


def test_each_promise_can_fail() -> None:
    def row(**figures: Any) -> dict[str, Any]:
        good = {
            "cosine": 0.8, "collision": 0.01, "floor": 0.01, "collision after": 0.0, "train s": 4.0, "encode s": 1.0,
            "_used": [256] * 4, "_evenness": [0.95, 0.9, 0.9, 0.9],
        }  # fmt: skip
        return {**good, **figures}

    def held(ours: dict[str, Any]) -> list[bool | None]:
        peers = {benchmark.FAISS: row(**{"train s": 5.0}), "worse but faster": row(**{"cosine": 0.5, "train s": 1.0})}
        return [claim.holds for claim in benchmark.promises({benchmark.OURS: ours, benchmark.QUICK: ours, **peers})]

    assert held(row()) == [True] * 7
    bad: list[dict[str, Any]] = [
        {"_used": [256, 255, 256, 256]}, {"cosine": 0.7}, {"_evenness": [0.89, 0.9, 0.9, 0.9]}, {"_evenness": [0.95, 0.9, 0.9, 0.79]},
        {"collision": 0.02}, {"collision after": 0.001}, {"train s": 7.0},
    ]  # fmt: skip
    for place, figures in enumerate(bad):
        assert held(row(**figures))[place] is False, figures


def test_a_package_that_is_missing_is_named() -> None:
    assert benchmark.without("faiss") == ""
    assert "clrflow[bench]" in benchmark.without("no_such_package")


def test_the_picture_shows_ours_by_balance_and_each_peer() -> None:
    figures = {"cosine": 0.8, "codes used, perplexity / used": "256 0.90  1,255 0.60"}
    frontier = [{"part": "frontier on beauty, 4 × 256", "who": f"balance {balance}, latent 256", **figures} for balance in ("3", "0.1")]
    peers = [
        {"part": "beauty, 4 × 256", "who": who, **figures, "cosine": cosine}
        for who, cosine in (("clrflow", 0.8), ("near", 0.7), ("far", 0.2))
    ]
    assert least_even(frontier[0]) == 0.6
    (ax,) = draw([*frontier, *peers, {"part": "toys, 4 × 256", "who": "skipped"}]).axes
    assert [text.get_text() for text in ax.texts] == ["0.1", "3"]
    assert ax.get_legend_handles_labels()[1] == ["clrflow, by balance", "near"]
    assert "far: 0.200 at 0.60" in ax.get_xlabel()
