"""Ids outlive a run: a tokenizer is taken as it is, trained on, or found through what is published."""

from __future__ import annotations

import numpy as np
import pytest

from clrflow import storage
from clrflow.data.tables import read_table
from clrflow.errors import BadInput, ConfigError, GateError
from clrflow.manifest import Manifest
from clrflow.semantic_ids.build import add, build
from clrflow.semantic_ids.gate import check_gate
from clrflow.semantic_ids.previous import DESCRIPTION, fingerprint, published_tokenizer, source_of
from clrflow.semantic_ids.settings import SemanticIdSettings
from clrflow.semantic_ids.step import judge, run
from clrflow.semantic_ids.tokenizer import Tokenizer
from tests.semantic_ids.conftest import catalogue_of
from tests.semantic_ids.test_step import BIG, context_of


@pytest.fixture(scope="module")
def founded(clusters, settings, tmp_path_factory):
    """The step's result on the first 390 items of the catalogue."""
    folder = tmp_path_factory.mktemp("founded")
    result = run(context_of(folder, settings, clusters.embeddings[:390]))
    return folder, result


def test_only_new_items_get_ids_and_all_others_keep_theirs(founded, clusters, settings, tmp_path):
    folder, before = founded
    # context_of counts ids downwards, so the ten new rows at the end get ten new, smaller ids.
    again = run(context_of(tmp_path, settings.model_copy(update={"tokenizer": str(folder / "out")}), clusters.embeddings))
    old, new = read_table(before.outputs["codes"].uri), read_table(again.outputs["codes"].uri)
    assert len(new) == 400
    assert new.slice(10).equals(old)
    assert len(np.unique(np.array(new["codes"].to_pylist()), axis=0)) == 400
    assert again.facts["tokenizer_hash"] == before.facts["tokenizer_hash"]
    assert (again.metrics["items_known"], again.metrics["items_new"], again.metrics["kept_prefix_3"]) == (390, 10, 1)
    assert again.metrics["still_nearest"] == 1
    assert "train_s" not in again.metrics
    assert "Compared with the previous tokenizer" in again.report
    assert Tokenizer.load(again.outputs["tokenizer"].uri).item_ids.tolist() == [*range(BIG - 389, BIG + 1), *range(BIG - 399, BIG - 389)]


def test_an_item_that_left_and_came_back_has_its_old_id(founded, clusters, settings, tmp_path):
    folder, before = founded
    without = settings.model_copy(update={"tokenizer": str(folder / "out" / "tokenizer")})
    fewer = run(context_of(tmp_path / "fewer", without, clusters.embeddings[:100]))
    assert fewer.outputs["codes"].num_rows == 100
    back = settings.model_copy(update={"tokenizer": fewer.outputs["tokenizer"].uri})
    again = run(context_of(tmp_path / "again", back, clusters.embeddings[:390]))
    assert read_table(again.outputs["codes"].uri).equals(read_table(before.outputs["codes"].uri))


def test_ids_that_embeddings_have_left_behind_fail_the_gate(founded, clusters, settings, tmp_path):
    folder, _ = founded
    kept = settings.model_copy(update={"tokenizer": str(folder / "out")})
    drifted = clusters.embeddings[:390][::-1].copy()
    words = r"only 0\.[0-3]\d+ of the 390 known items.*min_still_nearest=0\.5.*semantic_ids\.start_from in place of tokenizer"
    with pytest.raises(GateError, match=words):
        run(context_of(tmp_path / "strict", kept, drifted))
    lax = kept.model_copy(update={"gate": kept.gate.model_copy(update={"min_still_nearest": 0.0})})
    again = run(context_of(tmp_path / "lax", lax, drifted))
    assert again.metrics["kept_prefix_1"] == 1
    assert again.metrics["still_nearest"] < 0.4
    assert again.metrics["moved"] == 0  # nobody got an id now


def test_with_all_or_no_items_known(clusters, settings):
    before = build(clusters, settings).tokenizer
    same = add(clusters, before)
    assert (same.tokenizer, same.is_new.any()) == (before, False)
    others = catalogue_of(clusters.embeddings[:50])
    others.item_ids[:] += 1000
    new = add(others, before)
    assert new.is_new.all()
    assert new.change is not None
    assert (new.change.num_known, new.change.num_gone, new.change.kept) == (0, 400, (1.0, 1.0, 1.0))
    figures = judge(others, new, settings)
    assert sum(figures.moved) == 50  # each has the embedding of a known item, whose id is taken
    check_gate(figures, settings.gate, new.change)


def test_few_items_keep_their_codes_when_training_goes_on(settings):
    few = catalogue_of(np.eye(16)[:10])
    before = build(few, settings).tokenizer
    more = catalogue_of(np.eye(16)[:12])
    on = build(more, settings, before)
    assert on.change is not None
    assert on.change.kept[0] == 1
    assert len(np.unique(on.tokenizer.codes[:, 0])) == 12


def test_start_from_has_no_effect_beside_a_tokenizer(founded, clusters, settings, tmp_path):
    folder, _ = founded
    both = settings.model_copy(update={"tokenizer": str(folder / "out"), "start_from": "/nowhere"})
    assert source_of(both, "/workspace").uri == str(folder / "out" / "tokenizer")
    with pytest.raises(ValueError, match="training can start from a URI or from `published`"):
        SemanticIdSettings(start_from="published_or_new")


def test_training_goes_on_from_a_tokenizer_and_says_what_items_keep(clusters, settings):
    before = build(clusters, settings).tokenizer
    rng = np.random.default_rng(5)
    more = catalogue_of(np.concatenate([clusters.embeddings, clusters.embeddings[:40] + 0.02 * rng.normal(size=(40, 16))]))
    on = build(more, settings, before).change
    fresh = build(more, settings.model_copy(update={"seed": 9})).tokenizer
    assert on is not None
    assert (on.num_known, on.num_new, on.num_gone, on.previous) == (400, 40, 0, before.hash)
    assert on.kept[0] > 0.8
    assert list(on.kept) == sorted(on.kept, reverse=True)
    # With another seed codes are other numbers: one in sixteen is the same by chance.
    assert (fresh.codes_of(clusters.item_ids)[:, 0] == before.codes[:, 0]).mean() < 0.3


def test_sizes_that_differ_from_the_settings_are_named(founded, clusters, settings, tmp_path):
    folder, _ = founded
    other = settings.model_copy(update={"num_codes": 8, "tokenizer": str(folder / "out")})
    with pytest.raises(ConfigError, match=r"semantic_ids\.tokenizer:.*num_codes 16 \(semantic_ids\.num_codes=8\)"):
        run(context_of(tmp_path / "a", other, clusters.embeddings))
    narrow = settings.model_copy(update={"latent_dim": 4, "start_from": str(folder / "out")})
    with pytest.raises(ConfigError, match=r"semantic_ids\.start_from:.*latent_dim 8 \(semantic_ids\.latent_dim=4\)"):
        run(context_of(tmp_path / "b", narrow, clusters.embeddings))
    for setting in ("tokenizer", "start_from"):
        wide = settings.model_copy(update={setting: str(folder / "out")})
        with pytest.raises(BadInput, match=r"\[20, 3\] were given to a tokenizer for width 16"):
            run(context_of(tmp_path / setting, wide, np.random.default_rng(0).normal(size=(20, 3))))
    with pytest.raises(ConfigError, match=r"semantic_ids\.tokenizer='.*nowhere' is no tokenizer"):
        run(context_of(tmp_path / "c", settings.model_copy(update={"tokenizer": str(tmp_path / "nowhere")}), clusters.embeddings))


def test_a_step_with_another_tokenizer_has_another_key(founded, clusters, settings, tmp_path):
    folder, _ = founded
    fresh, kept = (
        context_of(tmp_path / name, settings.model_copy(update={"tokenizer": uri}), clusters.embeddings).run
        for name, uri in (("fresh", ""), ("kept", str(folder / "out")))
    )
    assert fingerprint(fresh) == ""
    before = fingerprint(kept)
    assert before
    grown = Tokenizer.load(str(folder / "out" / "tokenizer")).with_items(np.array([1]), np.ones((1, 16), dtype=np.float32))
    grown.save(str(tmp_path / "grown"))
    other = context_of(tmp_path / "other", settings.model_copy(update={"tokenizer": str(tmp_path / "grown")}), clusters.embeddings).run
    assert fingerprint(other) != before  # though both have the same hash


def test_the_published_models_tokenizer_is_found(tmp_path):
    workspace = str(tmp_path)

    def result(step: str, key: str, inputs: dict[str, str]) -> Manifest:
        folder = storage.join(workspace, "steps", step, key)
        made = Manifest(
            step=step, key=key, uri=folder, outputs={}, metrics={}, facts={"key": key}, config={}, inputs=inputs, step_version=1
        )
        made.save()
        storage.write_json(storage.join(folder, "tokenizer", DESCRIPTION), {})
        return made

    assert published_tokenizer(workspace) == ""
    with pytest.raises(ConfigError, match=r"semantic_ids\.tokenizer=published, but nothing was published yet"):
        source_of(SemanticIdSettings(tokenizer="published"), workspace)
    assert source_of(SemanticIdSettings(tokenizer="published_or_new"), workspace).uri == ""
    _, wanted = result("semantic_ids", "old", {}), result("semantic_ids", "wanted", {})
    train = result("train", "t", {"semantic_ids": wanted.fingerprint})
    pointer = {"version": "v", "fingerprint": "f", "train": train.fingerprint, "champion": ""}
    storage.write_json(storage.join(workspace, "published", "current.json"), pointer)
    found = storage.join(workspace, "steps", "semantic_ids", "wanted", "tokenizer")
    assert published_tokenizer(workspace) == source_of(SemanticIdSettings(tokenizer="published_or_new"), workspace).uri == found
    storage.remove(storage.join(found, DESCRIPTION))
    assert published_tokenizer(workspace) == ""
