"""The step from Parquet to codes, tokenizer and report, and its gate."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pytest

from clrflow.config import PipelineConfig
from clrflow.contracts import codes_schema
from clrflow.data.settings import DataSettings
from clrflow.data.tables import read_table, write_table
from clrflow.errors import BadInput, ConfigError, DataError, GateError
from clrflow.manifest import Manifest
from clrflow.semantic_ids.build import build
from clrflow.semantic_ids.gate import check_gate
from clrflow.semantic_ids.step import judge, run
from clrflow.semantic_ids.tokenizer import Tokenizer
from clrflow.steps import Run, StepContext

BIG = 2**60


def context_of(tmp_path, settings, embeddings: np.ndarray, titles: bool = True) -> StepContext:
    """A context over items BIG, BIG - 1, ... (so not sorted) with two interests in turn."""
    count = len(embeddings)
    columns = {
        "item_id": pa.array([BIG - row for row in range(count)], pa.int64()),
        "interests": pa.array([[row % 2 + 1] for row in range(count)], pa.list_(pa.int64())),
        "content_embedding": pa.FixedSizeListArray.from_arrays(pa.array(embeddings.astype(np.float32).reshape(-1)), embeddings.shape[1]),
    }
    if titles:
        columns["title"] = pa.array([None if row == 0 else f"Film {row}" for row in range(count)], pa.string())
    items = pa.table(columns)
    interests = pa.table({"interest_id": pa.array([1, 2], pa.int64()), "name": pa.array(["<Drama>", "War"])})
    outputs = {
        "items": write_table(str(tmp_path / "items"), items, items.schema),
        "interests": write_table(str(tmp_path / "interests"), interests, interests.schema),
    }
    validated = Manifest(
        step="validate_data", key="k", uri=str(tmp_path), outputs=outputs, metrics={}, facts={}, config={}, inputs={}, step_version=1
    )
    config = PipelineConfig(data=DataSettings(tables="t"), semantic_ids=settings)
    return StepContext(
        run=Run(name="r", workspace=str(tmp_path), config=config), inputs={"validate_data": validated}, folder=str(tmp_path / "out")
    )


def test_every_item_gets_a_row_sorted_by_id_and_the_tokenizer_agrees(clusters, settings, tmp_path):
    result = run(context_of(tmp_path, settings, clusters.embeddings))
    table = read_table(result.outputs["codes"].uri)
    assert table.schema.equals(codes_schema(3))
    item_ids = table["item_id"].to_numpy()
    assert np.array_equal(item_ids, np.arange(BIG - 399, BIG + 1))
    tokenizer = Tokenizer.load(result.outputs["tokenizer"].uri, expected_hash=result.facts["tokenizer_hash"])
    assert np.array_equal(tokenizer.codes_of(item_ids), np.array(table["codes"].to_pylist()))
    assert (result.facts["num_levels"], result.facts["num_codes"]) == (3, 16)
    assert result.metrics["collision_after"] == 0
    assert {"usage_level_1", "perplexity_level_3", "reconstruction_cosine", "neighbour_agreement", "train_s"} <= set(result.metrics)
    assert "&lt;Drama&gt;" in result.report
    assert "Film 5" in result.report
    assert result.report.count("data:image/png") == 4


def test_a_table_without_titles_shows_item_ids(settings, tmp_path):
    result = run(context_of(tmp_path, settings, np.eye(4), titles=False))
    assert str(BIG) in result.report


@pytest.mark.parametrize("count", [1, 2, 1000])
def test_equal_items_make_a_report_too(count, settings, tmp_path):
    result = run(context_of(tmp_path, settings, np.ones((count, 4))))
    assert result.outputs["codes"].num_rows == count


def test_what_can_not_be_encoded_is_refused(settings, tmp_path):
    with pytest.raises(DataError, match="items has no rows"):
        run(context_of(tmp_path / "empty", settings, np.ones((0, 4))))
    with pytest.raises(BadInput, match=str(BIG)):
        run(context_of(tmp_path / "nan", settings, np.array([[np.inf, 1.0]])))
    small = settings.model_copy(update={"num_levels": 1})
    with pytest.raises(ConfigError, match="give 16 ids for 17 items"):
        run(context_of(tmp_path / "many", small, np.random.default_rng(0).normal(size=(17, 4))))


def test_the_gate_names_figure_threshold_and_setting(clusters, settings):
    built = build(clusters, settings)
    figures = judge(clusters, built, settings)
    check_gate(figures, settings.gate)
    strict = settings.gate.model_copy(update={"min_reconstruction_cosine": 0.9999, "min_usage": 1.0})
    with pytest.raises(GateError, match=r"reconstruction cosine is 0\.9\d+, below semantic_ids\.gate\.min_reconstruction_cosine=0\.9999"):
        check_gate(figures, strict)


def test_a_collapsed_level_fails_the_gate(clusters, settings):
    # All codebooks' prices but the first code's are prohibitive: level 1 has one code in use.
    built = build(clusters, settings)
    trained = built.trained
    assert trained is not None
    trained.model.quantiser.prices[0, 1:] = 1e6
    tokenizer, assigned = Tokenizer.found(trained.model, clusters.item_ids, clusters.embeddings)
    figures = judge(clusters, dataclasses.replace(built, tokenizer=tokenizer, assigned=assigned), settings)
    with pytest.raises(GateError, match=r"usage of level 1 is 0\.062 \(1 of 16 usable codes\), below semantic_ids\.gate\.min_usage=0\.9"):
        check_gate(figures, settings.gate)
    assert figures.collision_after == 0
