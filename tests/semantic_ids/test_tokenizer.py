"""What is trained, saved, shipped and added to."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
import torch

from clrflow.errors import BadInput
from clrflow.semantic_ids.build import build
from clrflow.semantic_ids.catalogue import refuse_not_finite
from clrflow.semantic_ids.gate import check_gate
from clrflow.semantic_ids.previous import DESCRIPTION
from clrflow.semantic_ids.step import judge
from clrflow.semantic_ids.tokenizer import ITEMS, WEIGHTS, Tokenizer
from tests.semantic_ids.conftest import catalogue_of


@pytest.fixture(scope="module")
def tokenizer(clusters, settings) -> Tokenizer:
    return build(clusters, settings).tokenizer


def test_the_same_seed_gives_the_same_ids(clusters, settings, tokenizer):
    again = build(clusters, settings).tokenizer
    assert np.array_equal(again.codes, tokenizer.codes)
    assert again.hash == tokenizer.hash
    other = build(clusters, settings.model_copy(update={"seed": 1})).tokenizer
    assert other.hash != tokenizer.hash


def test_training_keeps_the_epoch_that_reconstructs_held_out_items_best(clusters, settings):
    built = build(clusters, settings)
    trained = built.trained
    assert trained is not None
    cosines = [epoch.validation_cosine for epoch in trained.epochs]
    assert trained.best_epoch == 0 or cosines[trained.best_epoch - 1] == max(cosines)
    figures = judge(clusters, built, settings)
    assert figures.reconstruction_cosine > 0.9
    assert min(level.usage for level in figures.levels) > 0.9
    assert figures.collision_after == 0


def test_saved_and_loaded_it_gives_the_same_ids(clusters, tokenizer, tmp_path):
    tokenizer.save(str(tmp_path))
    loaded = Tokenizer.load(str(tmp_path), expected_hash=tokenizer.hash)
    assert np.array_equal(loaded.codes_of(clusters.item_ids), tokenizer.codes)
    assert np.array_equal(
        loaded.nearest_codes(clusters.item_ids, clusters.embeddings), tokenizer.nearest_codes(clusters.item_ids, clusters.embeddings)
    )
    assert not [file for file in tmp_path.iterdir() if file.read_bytes()[:2] in (b"PK", b"\x80\x02", b"\x80\x04")]  # zip or pickle


def test_codes_do_not_depend_on_the_batch(clusters, tokenizer):
    whole = tokenizer.nearest_codes(clusters.item_ids, clusters.embeddings)
    for size in (1, 3, 64):
        parts = [
            tokenizer.nearest_codes(clusters.item_ids[start : start + size], clusters.embeddings[start : start + size])
            for start in range(0, len(clusters), size)
        ]
        assert np.array_equal(np.concatenate(parts), whole)


def test_items_that_come_later_get_ids_and_change_none(clusters, tokenizer):
    # Ten copies of known items, so that every one of them meets a taken id, under ids beyond 2 ** 53.
    new = np.arange(2**60, 2**60 + 10, dtype=np.int64)
    grown = tokenizer.with_items(
        np.concatenate([clusters.item_ids[:5], new]), np.concatenate([clusters.embeddings[5:10], clusters.embeddings[:10]])
    )
    assert np.array_equal(grown.codes_of(clusters.item_ids), tokenizer.codes)
    assert len(np.unique(grown.codes, axis=0)) == 410
    assert grown.hash == tokenizer.hash
    # Copies land in the neighbourhood of their originals.
    assert np.array_equal(grown.codes_of(new)[:, 0], tokenizer.codes[:10, 0])
    assert np.array_equal(grown.with_items(new, clusters.embeddings[:10]).codes, grown.codes)


def test_the_hash_changes_with_a_weight_and_with_an_id(tokenizer):
    model = copy.deepcopy(tokenizer.model)
    with torch.no_grad():
        next(model.parameters())[0, 0] += 0.001
    assert dataclasses.replace(tokenizer, model=model).hash != tokenizer.hash
    codes = tokenizer.codes.copy()
    codes[0, 0] += 1
    assert dataclasses.replace(tokenizer, codes=codes).hash != tokenizer.hash


def test_a_tokenizer_that_is_not_the_expected_one_is_refused(tokenizer, tmp_path):
    tokenizer.save(str(tmp_path))
    with pytest.raises(BadInput, match=rf"{tokenizer.hash}, but what was made with it says abc"):
        Tokenizer.load(str(tmp_path), expected_hash="abc")
    weights = bytearray((tmp_path / WEIGHTS).read_bytes())
    weights[-1] ^= 1
    (tmp_path / WEIGHTS).write_bytes(bytes(weights))
    with pytest.raises(BadInput, match="its own description says"):
        Tokenizer.load(str(tmp_path))
    (tmp_path / WEIGHTS).write_bytes(b"half")
    with pytest.raises(BadInput, match="damaged"):
        Tokenizer.load(str(tmp_path))
    tokenizer.save(str(tmp_path))
    tokenizer.with_items(np.array([1]), np.ones((1, 16), dtype=np.float32)).save(str(tmp_path / "grown"))
    (tmp_path / ITEMS).write_bytes((tmp_path / "grown" / ITEMS).read_bytes())
    with pytest.raises(BadInput, match="ids aren't those"):  # one more than described, though the founding ones are right
        Tokenizer.load(str(tmp_path))
    (tmp_path / DESCRIPTION).unlink()
    with pytest.raises(BadInput, match="not a tokenizer"):
        Tokenizer.load(str(tmp_path))


def test_an_unknown_item_and_a_wrong_width_are_named(tokenizer):
    with pytest.raises(BadInput, match=r"1 item\(s\) \(7\) have no semantic id"):
        tokenizer.codes_of(np.array([10, 7]))
    with pytest.raises(BadInput, match=r"\[1, 3\].*width 16"):
        tokenizer.nearest_codes(np.array([1]), np.ones((1, 3), dtype=np.float32))


def test_nan_embeddings_are_refused_by_item():
    embeddings = np.ones((3, 4), dtype=np.float32)
    embeddings[1, 2] = np.nan
    with pytest.raises(BadInput, match=r"1 item\(s\) \(11\) holds NaN.*bad_embedding"):
        refuse_not_finite(np.array([10, 11, 12]), embeddings)


@pytest.mark.parametrize(
    ("embeddings", "usable"),
    [
        (np.ones((1000, 6)), (1, 1, 1)),
        (np.zeros((5, 6)), (1, 1, 1)),
        (np.ones((1, 6)), (1, 1, 1)),
        # Three items, each its own first code: nothing is left to tell apart below.
        (np.eye(6)[:3], (3, 1, 1)),
        (np.full((2, 6), 1e-30), (1, 1, 1)),
    ],
    ids=["a thousand equal items", "zeros", "one item", "fewer items than codes", "tiny values"],
)
def test_catalogues_at_the_edge_get_unique_ids_and_pass_the_gate(embeddings, usable, settings):
    catalogue = catalogue_of(embeddings)
    built = build(catalogue, settings)
    figures = judge(catalogue, built, settings)
    assert figures.collision_after == 0
    assert figures.collision == figures.collision_floor
    assert tuple(level.usable for level in figures.levels) == usable
    check_gate(figures, settings.gate)
