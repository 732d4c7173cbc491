"""Every kind of index at every size, ids that no float holds, and bundles that are refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import faiss
import numpy as np
import pytest

from clrflow import storage
from clrflow.errors import BadInput, ClrflowError, DataError, GateError
from clrflow.index.build import build_index, choose_kind, recall_against_exact
from clrflow.index.bundle import NO_ITEM, load
from clrflow.index.settings import IndexSettings

KINDS = ["auto", "flat", "hnsw", "ivf"]
AWKWARD = np.array([-(2**62), -1, 0, 2**31 + 1, 2**53 + 1, 2**62 + 1])
"""Ids beyond int32 and float64, below zero, and FAISS's own "nothing found", -1."""


@pytest.mark.parametrize("kind", KINDS)
class TestEveryIndex:
    @pytest.mark.parametrize("num_items", [1, 10, 300, 3000])
    def test_finds_each_item_by_its_own_vector(self, factory, directions, kind, num_items):
        ids = np.arange(num_items) * 7 - 5
        exported = factory.export(ids, f"index.kind={kind}", "index.flat_below=1000", "index.ivf_probes=1000", "index.min_recall=0.9")
        bundle = load(exported.output("index"))
        found, scores = bundle.search(directions(num_items)[:50], 1)
        assert found[:, 0].tolist() == ids[:50].tolist()
        assert scores[:, 0] == pytest.approx(1.0, abs=1e-5)
        asked = "hnsw" if kind == "auto" else kind
        assert bundle.info["kind"] == (asked if num_items == 3000 else "flat")

    def test_returns_fewer_when_fewer_exist(self, factory, directions, kind):
        bundle = load(factory.export([4, 6], f"index.kind={kind}").output("index"))
        found, scores = bundle.search(directions(2)[:1], 5)
        assert found.shape == scores.shape == (1, 5)
        assert found[0, :2].tolist() == [4, 6]
        assert (scores[0, 2:] == NO_ITEM).all()

    def test_keeps_64_bit_ids_after_reload(self, factory, directions, kind):
        filler = np.arange(2000) + 10**6
        ids = np.r_[AWKWARD, filler]
        bundle = load(factory.export(ids, f"index.kind={kind}", "index.flat_below=1", "index.ivf_probes=1000").output("index"))
        found, scores = bundle.search(directions(len(ids))[: len(AWKWARD)], 1)
        assert found[:, 0].tolist() == AWKWARD.tolist()
        assert (scores[:, 0] > 0.99).all()  # the item with id -1 is a find, not a gap

    def test_leaves_out_what_is_excluded(self, factory, directions, kind):
        ids = np.r_[AWKWARD, np.arange(2000) + 10**6]
        bundle = load(factory.export(ids, f"index.kind={kind}", "index.flat_below=1", "index.ivf_probes=1000").output("index"))
        queries = directions(len(ids))[:2]
        plain, _ = bundle.search(queries, 6)
        excluded, scores = bundle.search(queries, 5, exclude=[plain[0, :1], np.zeros(0, np.int64)])
        assert excluded[0].tolist() == plain[0, 1:].tolist()
        assert excluded[1].tolist() == plain[1, :5].tolist()
        assert (np.diff(scores, axis=1) <= 0).all()

    def test_scores_equal_brute_force(self, factory, directions, kind):
        vectors, queries = directions(3000), directions(20, seed=9)
        bundle = load(factory.export(np.arange(3000), f"index.kind={kind}", "index.ivf_probes=1000").output("index"))
        found, scores = bundle.search(queries, 10)
        assert scores == pytest.approx(np.take_along_axis(queries @ vectors.T, found, axis=1), abs=1e-5)


class TestBuilding:
    def test_an_empty_catalogue_is_refused(self, factory):
        with pytest.raises(DataError, match="the catalogue holds no item"):
            factory.export([], vectors=np.zeros((0, 8)))

    def test_vectors_of_other_lengths_are_refused(self, directions):
        vectors = directions(3)
        vectors[1] *= 2
        with pytest.raises(ClrflowError, match=r"item 20 and 0 more have no unit vector \(length 2\)"):
            build_index(np.array([10, 20, 30]), vectors, IndexSettings())

    def test_repeated_ids_are_refused(self, directions):
        with pytest.raises(DataError, match="1 item ids appear more than once"):
            build_index(np.array([1, 2, 1]), directions(3), IndexSettings())

    @pytest.mark.parametrize(("kind", "num_items", "built"), [("hnsw", 999, "flat"), ("hnsw", 1000, "hnsw"), ("auto", 5000, "flat")])
    def test_small_catalogues_fall_back_to_flat(self, kind, num_items, built):
        assert choose_kind(IndexSettings(kind=kind), num_items) == built

    def test_the_metric_is_inner_product_on_every_kind(self, directions):
        for kind in ("flat", "hnsw", "ivf"):
            index, _ = build_index(np.arange(2000), directions(2000), IndexSettings(kind=kind))
            assert index.metric_type == faiss.METRIC_INNER_PRODUCT
            assert faiss.downcast_index(index.index).metric_type == faiss.METRIC_INNER_PRODUCT


class TestRecall:
    def test_of_exact_search_is_one_even_with_ties(self, directions):
        # Ten items share one vector: which five of them are answered doesn't matter.
        vectors = np.repeat(directions(4), 10, axis=0)
        index, _ = build_index(np.arange(40), vectors, IndexSettings())
        assert recall_against_exact(index, vectors, directions(20, seed=3), 5) == 1.0

    def test_below_the_threshold_fails_the_export_with_the_figure_and_the_remedy(self, factory):
        overrides = ["index.kind=ivf", "index.ivf_probes=1", "index.min_recall=0.99"]
        with pytest.raises(GateError, match=r"recall@50=0\.\d+ of the ivf index .* is below index.min_recall=0.99; raise index.ivf_probes"):
            factory.export(np.arange(3000), *overrides)

    def test_is_measured_on_items_where_there_are_no_queries(self, factory):
        exported = factory.export(np.arange(20), num_queries=0)
        assert load(exported.output("index")).info["recall_queries"] == 20


class TestTheBundle:
    def test_holds_what_a_server_needs(self, factory):
        boards = [(7, 5, item, hour) for hour, item in enumerate(range(12))] + [(8, 5, 3, 0), (7, 6, 1, 0)]
        exported = factory.export(np.arange(12), boards=boards)
        bundle = load(exported.output("index"))
        assert bundle.table("items").slice(3, 1).to_pylist() == [{"item_id": 3, "title": "Item 3", "interests": [1]}]
        assert bundle.table("interests").to_pylist() == [{"interest_id": 1, "name": "Comedy"}]
        # The newest ten of the twelve items, newest last.
        assert bundle.table("boards").to_pylist() == [
            {"board_id": 7, "user_id": 5, "name": "Board 7", "items": list(range(2, 12))},
            {"board_id": 7, "user_id": 6, "name": "Board 7", "items": [1]},
            {"board_id": 8, "user_id": 5, "name": "Board 8", "items": [3]},
        ]
        assert bundle.table("user_states")["user_id"].to_pylist() == [5]
        assert storage.read_bytes(storage.join(bundle.model_uri, "tables", "items.bin")) == bytes(range(256))
        assert bundle.info["tokenizer_hash"] == "hash-of-codes"
        assert bundle.info["recall_at_k"] == 1.0

    def test_equal_inputs_give_equal_bundles(self, factory):
        first, second = factory.export(np.arange(50)), factory.export(np.arange(50), "index.seed=1")
        assert first.output("index") != second.output("index")
        assert first.outputs["index"].fingerprint == second.outputs["index"].fingerprint

    def test_the_step_shows_recall_and_hands_on_what_the_index_is(self, factory):
        outcome = factory.execute_export(np.arange(60))
        assert outcome.manifest.metrics["index_recall@50"] == 1.0
        assert outcome.manifest.facts == {"kind": "flat", "dim": 8, "num_items": 60, "tokenizer_hash": "hash-of-codes"}
        assert load(outcome.uri).num_items == 60
        assert "<img" in storage.read_bytes(outcome.manifest.report_uri).decode()

    @pytest.mark.parametrize("name", ["index.faiss", "items.parquet", "model/tables/items.bin"])
    def test_a_damaged_file_is_refused_by_name(self, factory, name):
        place = factory.export(np.arange(50)).output("index")
        file = Path(place) / name
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(bytes(data))
        with pytest.raises(ClrflowError, match=f"{name} is damaged"):
            load(place)

    def test_a_cut_index_is_refused_even_without_its_hash(self, factory):
        place = factory.export(np.arange(50)).output("index")
        file = Path(place) / "index.faiss"
        file.write_bytes(file.read_bytes()[:100])
        with pytest.raises(ClrflowError, match="not a FAISS index"):
            load(place, verify=False)

    def test_a_missing_file_is_refused(self, factory):
        place = factory.export(np.arange(50)).output("index")
        (Path(place) / "boards.parquet").unlink()
        with pytest.raises(ClrflowError, match="a file is missing"):
            load(place)

    @pytest.mark.parametrize(
        ("change", "message"), [({"schema_version": 99}, "bundle schema 99"), ({"metric": "l2"}, "metric 'l2'"), ({"dim": 9}, "of 9 under")]
    )
    def test_another_schema_metric_or_width_is_refused(self, factory, change, message):
        place = factory.export(np.arange(50)).output("index")
        info = Path(place) / "index.json"
        info.write_text(json.dumps(json.loads(info.read_text()) | change))
        with pytest.raises(ClrflowError, match=message):
            load(place)

    def test_an_index_of_another_metric_is_refused(self, factory, directions):
        place = factory.export(np.arange(50)).output("index")
        other = faiss.IndexIDMap2(faiss.IndexFlatL2(8))
        other.add_with_ids(directions(50), np.arange(50))
        faiss.write_index(other, str(Path(place) / "index.faiss"))
        with pytest.raises(ClrflowError, match="under metric 1"):
            load(place, verify=False)

    def test_a_folder_without_an_index_is_refused(self, tmp_path):
        with pytest.raises(BadInput, match="holds no index"):
            load(str(tmp_path))

    def test_wrong_queries_are_refused(self, factory, directions):
        bundle = load(factory.export(np.arange(50)).output("index"))
        with pytest.raises(BadInput, match="don't fit an index of dimension 8"):
            bundle.search(np.ones((1, 9), np.float32), 1)
        with pytest.raises(BadInput, match="holds NaN"):
            bundle.search(np.full((1, 8), np.nan, np.float32), 1)
        with pytest.raises(BadInput, match="k=0"):
            bundle.search(directions(1), 0)
        with pytest.raises(BadInput, match="exclude has 2 lists for 1 queries"):
            bundle.search(directions(1), 1, exclude=[np.array([1]), np.array([2])])

    def test_is_read_without_torch(self):
        code = "import sys, clrflow.index.bundle; sys.exit('torch' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
