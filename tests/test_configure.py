"""What a person typed into a pipeline's parameters becomes a checked run, or a refusal that names the parameter."""

from __future__ import annotations

from pathlib import Path

import pytest

from clrflow import storage
from clrflow.config import load_config
from clrflow.configure import configure_run, join_overrides, page, split_overrides
from clrflow.errors import BadInput, ConfigError
from clrflow.index.publish import publish_version
from clrflow.manifest import Manifest
from clrflow.run_names import new_run_name
from clrflow.steps import Run
from clrflow.training.step import tables_source

UNSET = {"data.tables": "", "data.window_days": 0, "training.epochs": 0, "training.schedule": "", "model.dim": 0}


def test_unset_parameters_leave_the_preset_as_it_is(tmp_path: Path) -> None:
    run = configure_run(preset="small", workspace=str(tmp_path), shortcuts=UNSET)
    expected = load_config("small", overrides=[f"data.tables={Path.cwd() / 'tables'}"])
    assert run.config == expected
    assert Run.load(run.uri) == run


def test_parameters_that_are_set_win_over_the_preset_and_overrides_over_all(tmp_path: Path) -> None:
    shortcuts = {**UNSET, "data.tables": "/my/tables", "training.epochs": 2, "training.schedule": "co_train", "model.dim": 32}
    run = configure_run(preset="small", workspace=str(tmp_path), shortcuts=shortcuts, overrides="training.epochs=5; gate.max_loss=0.5")
    assert run.config.data.tables == "/my/tables"
    assert run.config.training.schedule == "co_train"
    assert run.config.model.dim == 32
    assert run.config.training.epochs == 5
    assert run.config.gate.max_loss == 0.5


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", []),
        ("a.b=1", ["a.b=1"]),
        ("a.b=1 c.d=2", ["a.b=1", "c.d=2"]),
        ("a.b=1; c.d=2;", ["a.b=1", "c.d=2"]),
        ("a.b=1\nc.d=x y", ["a.b=1", "c.d=x y"]),
        ("data.now=2026-01-01 00:00 a.b=[1, 2]", ["data.now=2026-01-01 00:00", "a.b=[1, 2]"]),
        ("a.b=1 epochs=2", ["a.b=1", "epochs=2"]),
    ],
)
def test_overrides_are_separated_by_spaces_lines_or_semicolons_and_values_may_hold_them(text: str, parts: list[str]) -> None:
    assert split_overrides(text) == parts


@pytest.mark.parametrize("macro", ["[[ScheduledTime]]", "{{workflow.name}}", "s3://bucket/{{$.pipeline_job_name}}/x"])
@pytest.mark.parametrize("parameter", ["preset", "workspace", "run_name", "overrides", "data.tables"])
def test_a_macro_that_nobody_expanded_is_refused_by_its_parameter(tmp_path: Path, parameter: str, macro: str) -> None:
    given: dict = {"preset": "small", "workspace": str(tmp_path), "shortcuts": {}}
    if parameter == "data.tables":
        given["shortcuts"] = {parameter: macro}
    else:
        given[parameter] = macro
    with pytest.raises(BadInput, match="macro that was not expanded") as caught:
        configure_run(**given)
    assert str(caught.value).startswith(f"parameter {parameter}=")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../up", "a/b", "a b", "-x", "x" * 101])
def test_a_run_name_that_is_no_folder_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput, match="run_name="):
        configure_run(preset="small", workspace=str(tmp_path), run_name=name)


def test_a_missing_workspace_or_table_folder_is_refused_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="Give the URI of a folder"):
        configure_run(preset="small", workspace="")
    with pytest.raises(ConfigError, match=r"--set data\.tables=FOLDER"):
        configure_run(preset="small", workspace=str(tmp_path), overrides="data.tables=")


def test_a_config_of_20_kilobytes_goes_by_file(tmp_path: Path) -> None:
    # 600 actions of about 40 characters are 24 kB: more than a parameter should carry, little for a file.
    actions = [{"name": f"action_{index:03d}", "weight": 1.0} for index in range(600)]
    raw = load_config("small", overrides=["data.tables=/t"]).model_dump(mode="json")
    raw["data"]["actions"] = actions
    file = str(tmp_path / "config.json")
    storage.write_json(file, raw)
    assert storage.size_bytes(file) > 20_000
    run = configure_run(config=file, preset="small", workspace=str(tmp_path / "w"))
    assert len(Run.load(run.uri).config.data.actions) == 600


def test_an_earlier_runs_settings_are_taken_again_under_a_new_name(tmp_path: Path) -> None:
    first = configure_run(preset="small", workspace=str(tmp_path), run_name="monday", overrides="training.epochs=2 data.tables=/t")
    for resume in ("monday", first.uri):
        second = configure_run(preset="demo", resume=resume, workspace=str(tmp_path), shortcuts=UNSET)
        assert second.config == first.config
        assert second.name != "monday"


def test_resuming_with_other_settings_or_from_nowhere_is_refused(tmp_path: Path) -> None:
    configure_run(preset="small", workspace=str(tmp_path), run_name="monday", overrides="data.tables=/t")
    with pytest.raises(ConfigError, match=r"training\.epochs=2 was given too"):
        configure_run(resume="monday", workspace=str(tmp_path), overrides="training.epochs=2")
    with pytest.raises(BadInput, match="holds no run"):
        configure_run(resume="tuesday", workspace=str(tmp_path))


def test_names_of_runs_differ_and_sort_by_time() -> None:
    names = [new_run_name() for _ in range(20)]
    assert len(set(names)) == 20
    assert names[0][:15] <= names[-1][:15]


def test_the_page_of_settings_shows_what_differs_first_and_obeys_no_markup(tmp_path: Path) -> None:
    run = configure_run(preset="small", workspace=str(tmp_path), overrides="data.tables=/<b>x training.epochs=9")
    html = page(run)
    assert "/&lt;b&gt;x" in html
    assert "<b>x" not in html
    # epochs (9, default 4) differs, seed doesn't.
    assert html.index("training.epochs") < html.index("training.seed")


def test_overrides_given_one_by_one_stay_apart() -> None:
    joined = join_overrides(["data.tables=a b", "training.epochs = 3", "data.now="])
    assert split_overrides(joined) == ["data.tables=a b", "training.epochs= 3", "data.now="]


@pytest.mark.parametrize("override", ["training.epochs", "=3", "", "training epochs=3", "training..epochs=3"])
def test_an_override_that_is_no_assignment_does_not_melt_into_the_one_before(override: str) -> None:
    with pytest.raises(ConfigError, match=r"is no assignment; write it as part\.field=value"):
        join_overrides(["data.tables=a", override])


def test_an_earlier_run_may_go_on_in_another_place_with_its_settings_unchanged(tmp_path: Path) -> None:
    first = configure_run(preset="small", workspace=str(tmp_path), run_name="monday", overrides="data.tables=/t")
    second = configure_run(
        resume="monday", workspace=str(tmp_path), shortcuts={"launch.launcher": "pytorchjob"}, overrides="launch.image=clrflow/trainer:1"
    )
    assert second.config.launch.launcher == "pytorchjob"
    assert second.config.model_copy(update={"launch": first.config.launch}) == first.config


def test_settings_given_as_text_are_taken_like_a_file(tmp_path: Path) -> None:
    text = '{"data": {"tables": "/t"}, "training": {"epochs": 7}, "launch": {"labels": {"a": "b"}}}'
    run = configure_run(config=text, workspace=str(tmp_path), overrides="model.dim=32")
    assert (run.config.training.epochs, run.config.model.dim, run.config.launch.labels) == (7, 32, {"a": "b"})
    with pytest.raises(ConfigError, match="settings given as text: 1 setting"):
        configure_run(config='{"data": {"tables": "/t"}, "training": {"epoch": 7}}', workspace=str(tmp_path))
    with pytest.raises(ConfigError, match="are not JSON"):
        configure_run(config="{epochs", workspace=str(tmp_path))


def test_settings_as_text_above_20_kilobytes_must_be_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="put them into a file that every pod can read"):
        configure_run(config='{"data": {"tables": "' + "x" * 20_000 + '"}}', workspace=str(tmp_path))


def test_a_macro_inside_settings_given_as_text_is_refused_and_nested_lists_are_none(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"parameter config \(data\.tables\)='s3://b/\[\[Date\]\]'"):
        configure_run(config='{"data": {"tables": "s3://b/[[Date]]"}}', workspace=str(tmp_path))
    with pytest.raises(ConfigError, match=r"training\.epochs"):  # refused for what it is, not as a macro
        configure_run(config='{"data": {"tables": "/t"}, "training": {"epochs": [[1, 2]]}}', workspace=str(tmp_path))


@pytest.mark.parametrize("parameter", ["job", "lock"])
def test_a_job_or_a_lock_that_is_no_name_is_refused(tmp_path: Path, parameter: str) -> None:
    for value, words in (("{{$.pipeline_job_uuid}}", "macro"), ("../up", f"parameter {parameter}='../up'")):
        with pytest.raises(BadInput, match=words):
            configure_run(preset="small", workspace=str(tmp_path), **{parameter: value})
    assert list(tmp_path.iterdir()) == []


def test_a_first_run_with_no_published_model_lets_validation_pick_the_schedule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = configure_run(preset="production", workspace=str(tmp_path), overrides="data.tables=/t")
    assert (run.config.training.schedule, run.config.training.frozen_table_from) == ("auto", "")
    assert run.config.semantic_ids.tokenizer == ""
    assert "no published tables for this run's semantic ids" in capsys.readouterr().out


def test_a_later_run_starts_from_the_published_model(tmp_path: Path) -> None:
    publish_trained(tmp_path)
    run = configure_run(preset="production", workspace=str(tmp_path), overrides="data.tables=/t")
    assert (run.config.training.schedule, run.config.training.frozen_table_from) == ("delayed", "published")
    assert run.config.semantic_ids.tokenizer == "published"
    # What `published` means is then found by content, so a workspace that was moved still has it.
    assert tables_source(run.config.training, run.workspace) == str(tmp_path / "steps/train/t1/checkpoints/co_train/best")


def test_a_published_model_whose_training_result_is_gone_counts_as_none(tmp_path: Path) -> None:
    publish_trained(tmp_path)
    storage.remove(str(tmp_path / "steps/train/t1"))
    assert configure_run(preset="production", workspace=str(tmp_path), overrides="data.tables=/t").config.training.schedule == "auto"


def test_a_published_model_whose_tokenizer_is_gone_has_no_tables_that_fit(tmp_path: Path) -> None:
    publish_trained(tmp_path)
    storage.remove(str(tmp_path / "steps/semantic_ids/s1"))
    config = configure_run(preset="production", workspace=str(tmp_path), overrides="data.tables=/t").config
    assert (config.semantic_ids.tokenizer, config.training.schedule) == ("", "auto")


@pytest.mark.parametrize(
    "ids", ["semantic_ids.tokenizer=", "semantic_ids.tokenizer= semantic_ids.start_from=published", "semantic_ids.tokenizer=OTHER"]
)
def test_tables_are_not_frozen_under_other_ids_than_their_own(tmp_path: Path, ids: str) -> None:
    publish_trained(tmp_path)
    other = str(tmp_path / "steps/semantic_ids/s0")
    config = configure_run(preset="production", workspace=str(tmp_path), overrides=f"data.tables=/t {ids.replace('OTHER', other)}").config
    assert (config.training.schedule, config.training.frozen_table_from) == ("auto", "")


def test_the_place_of_a_tokenizer_is_made_absolute_and_words_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = configure_run(
        preset="small", workspace="w", overrides="data.tables=/t semantic_ids.tokenizer=mine semantic_ids.start_from=published"
    ).config
    assert (config.semantic_ids.tokenizer, config.semantic_ids.start_from) == (str(tmp_path / "mine"), "published")


def publish_trained(workspace: Path) -> None:
    """A training result that was published, beside one that was not, and their tokenizers; all as small as can be."""

    def result(step: str, key: str, facts: dict[str, str], inputs: dict[str, str]) -> Manifest:
        folder = str(workspace / "steps" / step / key)
        made = Manifest(step=step, key=key, uri=folder, outputs={}, metrics={}, facts=facts, config={}, inputs=inputs, step_version=1)
        made.save()
        return made

    for number in ("0", "1"):
        tokenizer = result("semantic_ids", f"s{number}", {"n": number}, {})
        storage.write_json(f"{tokenizer.uri}/tokenizer/tokenizer.json", {"hash": f"hash {number}"})
        facts = {"checkpoint": "checkpoints/co_train/best", "n": number, "tokenizer_hash": f"hash {number}"}
        train = result("train", f"t{number}", facts, {"semantic_ids": tokenizer.fingerprint})
    storage.write_text(str(workspace / "bundle/index.txt"), "index")
    bundle = {"": str(workspace / "bundle")}
    publish_version(str(workspace / "published"), bundle, fingerprint="f" * 20, train=train.fingerprint, champion="")
