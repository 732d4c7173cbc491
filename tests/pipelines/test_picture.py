"""The picture in the README shows the DAG that runs."""

from __future__ import annotations

from pathlib import Path

import yaml

from pipelines.compiled import compile_pipeline
from pipelines.picture import columns, edges, main, svg


def test_the_picture_is_in_step_with_the_code() -> None:
    assert main(["--check"]) == 0, "run: python -m pipelines.picture"


def test_it_has_an_arrow_for_each_step_that_another_waits_for_and_none_that_others_imply(tmp_path: Path) -> None:
    compile_pipeline(tmp_path / "p.yaml")
    spec = next(iter(yaml.safe_load_all((tmp_path / "p.yaml").read_text())))
    tasks = dict(spec["components"]["comp-exit-handler-1"]["dag"]["tasks"])
    tasks["clean-up"] = {"dependentTasks": list(tasks)}  # the exit handler waits for the group as a whole
    waits = {name.replace("-", "_"): {other.replace("-", "_") for other in task.get("dependentTasks", [])} for name, task in tasks.items()}
    drawn = edges()
    assert {earlier for earlier, later in drawn if later == "train"} == {"bootstrap", "semantic_ids"}
    for earlier, later in drawn:
        assert earlier in waits[later]
    assert set(columns()) == set(waits)
    # Whatever the compiled pipeline waits for stands further left.
    assert all(columns()[earlier] < columns()[later] for later, before in waits.items() for earlier in before)
    assert svg().count("marker-end") == len(drawn)
