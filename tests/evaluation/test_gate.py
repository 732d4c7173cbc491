"""The gate's decisions in words and figures, and that a run which has published finds its gate again."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from clrflow import storage
from clrflow.config import load_config
from clrflow.contracts import TEST, VALIDATION
from clrflow.data.tables import write_table
from clrflow.errors import ConfigError
from clrflow.evaluation.comparison import Decision, Measured, decide, measured
from clrflow.evaluation.gate import champion_fingerprint
from clrflow.evaluation.harness import per_request_schema
from clrflow.evaluation.settings import GateSettings
from clrflow.manifest import Manifest, Output
from clrflow.steps import Outcome, Run, execute

NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
METRIC = "recall@50"
USERS = 100


def per_request(values: Any, model: str = "model", first_user: int = 0, at: datetime.datetime = NOON, split: str = TEST) -> pa.Table:
    """One request a user."""
    num = len(values)
    columns = {
        "request_id": np.arange(num), "user_id": np.arange(first_user, first_user + num), "requested_at": [at] * num,
        "split": [split] * num, "model": [model] * num, METRIC: np.asarray(values, float),
    }  # fmt: skip
    return pa.table(columns).cast(per_request_schema([METRIC]))


def of(values: Any, **more: Any) -> Measured:
    return measured(per_request(values, **more), "model", METRIC)


def decision(new: Any, champion: Measured | None = None, popularity: float = 0.1, already: bool = False, **settings: Any) -> Decision:
    low = of(np.full(USERS, popularity))
    return decide(of(new), low, champion, GateSettings(**settings), already_published=already)


HALF = np.arange(USERS) % 2 * 1.0
"""Mean .5."""


class TestWithoutAChampion:
    def test_a_model_that_beats_popularity_is_published(self):
        found = decision(HALF)
        assert found.decision == "publish"
        assert "first version: recall@50 0.5000, popularity 0.1000" in found.reason

    @pytest.mark.parametrize("popularity", [0.5, 0.6])
    def test_a_model_that_does_not_beat_popularity_is_held(self, popularity):
        found = decision(HALF, popularity=popularity)
        assert found.decision == "hold"
        assert "does not beat popularity" in found.reason

    def test_unless_that_is_switched_off(self):
        assert decision(HALF, popularity=0.6, beat_popularity=False).decision == "publish"

    def test_a_model_below_the_least_value_is_held(self):
        found = decision(HALF, min_value=0.51)
        assert (found.decision, "gate.min_value=0.51" in found.reason) == ("hold", True)

    @pytest.mark.parametrize("values", [[], [np.nan] * 100, [*[1.0] * 99, np.nan]])
    def test_a_metric_that_is_no_number_is_held(self, values):
        assert decision(values).decision == "hold"


class TestWithAChampion:
    def test_an_equal_model_is_published(self):
        found = decision(HALF, of(HALF))
        assert found.decision == "publish"
        assert "difference +0.0000 [+0.0000, +0.0000] on 100 shared test requests" in found.reason

    def test_a_clearly_worse_model_is_held_and_the_reason_has_the_figures(self):
        found = decision(HALF - 0.1, of(HALF))
        assert found.decision == "hold"
        assert "recall@50 0.4000, champion 0.5000, difference -0.1000 [-0.1000, -0.1000]" in found.reason

    def test_a_loss_within_the_limit_is_published(self):
        assert decision(HALF - 0.01, of(HALF), max_loss=0.011).decision == "publish"
        assert decision(HALF - 0.01, of(HALF), max_loss=0.009).decision == "hold"

    def test_a_loss_that_may_be_chance_is_published(self):
        # 3 of 100 users go from 1 to 0: -.03, and the interval reaches to about -.07 and 0.
        worse = HALF.copy()
        worse[[1, 3, 5]] = 0
        found = decision(worse, of(HALF), max_loss=0.01)
        assert found.decision == "publish"
        assert found.comparison is not None
        assert found.comparison.difference.high > -0.01

    def test_only_shared_requests_are_compared(self):
        # The champion was tested on users 40 to 139 and failed on all beyond 99; on the 60 shared ones the two are equal.
        champion = np.r_[HALF[40:], np.zeros(40)]
        found = decision(HALF, of(champion, first_user=40))
        assert found.comparison is not None
        assert (found.comparison.num_shared, found.comparison.paired, found.comparison.difference.mean) == (60, True, 0.0)

    def test_without_shared_requests_they_are_compared_as_two_samples(self):
        found = decision(HALF, of(HALF, at=NOON + datetime.timedelta(days=1)))
        assert found.decision == "publish"
        assert "on different test requests (0 shared), so as two samples" in found.reason
        worse = decision(np.full(USERS, 0.2), of(HALF, at=NOON + datetime.timedelta(days=1)))
        assert worse.decision == "hold"

    def test_a_handful_of_shared_requests_decides_nothing(self):
        # One shared user would give an interval of no width.
        found = decision(HALF, of(HALF, first_user=99))
        assert found.comparison is not None
        assert (found.comparison.num_shared, found.comparison.paired) == (1, False)

    def test_two_requests_of_a_user_at_one_moment_are_told_apart(self):
        table = pa.concat_tables([per_request([1.0]), per_request([0.0])])
        both = measured(table, "model", METRIC)
        assert both.table["turn"].to_pylist() == [0, 1]
        assert sorted(both.values) == [0.0, 1.0]

    def test_the_published_model_itself_is_let_through_without_a_comparison(self):
        found = decision(HALF, already=True)
        assert found.decision == "publish"
        assert found.reason.startswith("already published")


class TestFigures:
    def test_validation_rows_and_other_models_are_not_looked_at(self):
        table = pa.concat_tables([per_request([1.0]), per_request([0.0], split=VALIDATION), per_request([0.5], model="popularity")])
        assert measured(table, "model", METRIC).values.tolist() == [1.0]

    @pytest.mark.parametrize("metric", ["recall@7", "user_id"])
    def test_a_metric_that_was_not_measured_is_refused_with_those_that_were(self, metric):
        with pytest.raises(ConfigError, match=f"gate.metric='{metric}' was not measured; set it to one of recall@50"):
            measured(per_request([1.0]), "model", metric)


class Site:
    """A workspace in which models are judged and published; a model is its per-request values."""

    def __init__(self, folder: Path):
        self.folder, self.workspace = folder, str(folder / "workspace")

    def _manifest(self, step: str, outputs: dict[str, Output], facts: dict[str, Any]) -> str:
        uri = str(self.folder / step)
        Manifest(step=step, key="k", uri=uri, outputs=outputs, metrics={}, facts=facts, config={}, inputs={}, step_version=1).save()
        return uri

    def results(self, name: str, values: Any) -> dict[str, str]:
        """What evaluate, train and export_index leave for a model."""
        table = pa.concat_tables([per_request(values), per_request(np.full(len(values), 0.1), model="popularity")])
        folder = self.folder / name
        written = write_table(str(folder / "evaluate" / "per_request"), table, per_request_schema([METRIC]))
        figures = str(folder / "evaluate" / "evaluation.json")
        storage.write_json(figures, {"name": name})
        storage.write_json(str(folder / "export_index" / "index" / "index.json"), {"name": name})
        index = Output.of(str(folder / "export_index" / "index"))
        return {
            "evaluate": self._manifest(f"{name}/evaluate", {"per_request": written, "metrics": Output.of(figures)}, {}),
            "train": self._manifest(f"{name}/train", {}, {"model": name}),
            "export_index": self._manifest(f"{name}/export_index", {"index": index}, {}),
        }

    def run(self, name: str) -> Run:
        return Run(name=name, workspace=self.workspace, config=load_config("demo"))

    def submit(self, name: str, values: Any) -> tuple[Outcome, Outcome]:
        """Gate and publish a model in the run of its name, as a pipeline would; the same again when it is called again."""
        inputs = self.results(name, values)
        uri = self.run(name).save()
        storage.write_json(storage.join(uri, "train.json"), {"uri": inputs["train"], "reused": False})
        gate = execute("gate", uri, {key: inputs[key] for key in ("evaluate", "train")})
        publish = execute("publish", uri, {"gate": gate.uri, "export_index": inputs["export_index"], "evaluate": inputs["evaluate"]})
        return gate, publish


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


class TestRuns:
    def test_the_first_model_is_published_and_the_same_run_again_finds_its_gate(self, site):
        first_gate, first = site.submit("a", HALF)
        assert (first_gate.manifest.facts["decision"], first.manifest.facts["changed"]) == ("publish", True)
        again_gate, again = site.submit("a", HALF)
        assert again_gate.reused
        assert (again.manifest.facts["changed"], again.manifest.facts["published"]) == (False, first.manifest.facts["published"])
        assert site.submit("a", HALF)[1].reused

    def test_a_worse_model_is_held_and_the_published_one_stays(self, site):
        _, first = site.submit("a", HALF)
        gate, publish = site.submit("b", HALF - 0.2)
        assert gate.manifest.facts["decision"] == "hold"
        assert "worse than the champion" in gate.manifest.facts["reason"]
        assert publish.manifest.facts["published"] == first.manifest.facts["published"]
        assert publish.manifest.facts["changed"] is False

    def test_a_model_that_was_replaced_is_compared_with_its_successor(self, site):
        first, _ = site.submit("a", HALF)
        site.submit("b", HALF + 0.3)
        gate, publish = site.submit("a", HALF)
        assert not gate.reused
        assert gate.uri != first.uri
        assert gate.manifest.facts["decision"] == "hold"
        assert publish.manifest.facts["changed"] is False

    def test_the_key_follows_the_champion(self, site):
        run = site.run("c")
        before = champion_fingerprint(run)
        site.submit("a", HALF)
        after = champion_fingerprint(run)
        assert before == ""
        assert after != before
        site.submit("b", HALF + 0.1)
        assert champion_fingerprint(run) not in (before, after)

    def test_what_was_published_can_be_published_again_after_it_was_deleted(self, site):
        site.submit("a", HALF)
        storage.remove(storage.join(site.workspace, "published"))
        _, publish = site.submit("a", HALF)
        assert publish.manifest.facts["changed"] is True
        assert storage.exists(storage.join(site.workspace, "published", "current.json"))

    def test_a_champion_whose_figures_are_lost_holds_the_new_model_and_says_what_to_do(self, site):
        _, first = site.submit("a", HALF)
        storage.remove(storage.join(first.manifest.facts["uri"], "evaluation"))
        gate, _ = site.submit("b", HALF + 0.1)
        assert gate.manifest.facts["decision"] == "hold"
        assert "delete published/current.json" in gate.manifest.facts["reason"]
