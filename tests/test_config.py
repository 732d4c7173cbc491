"""Settings that are wrong are refused before anything runs, with field, value and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from clrflow.config import PipelineConfig, load_config, parse_config
from clrflow.errors import BadInput, ConfigError
from clrflow.presets import PRESETS


def refusal(*overrides: str, preset: str = "small") -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(preset, overrides=overrides)
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_every_preset_is_sound_and_survives_a_round_trip_through_json(preset: str) -> None:
    config = load_config(preset)
    assert parse_config(config.model_dump(mode="json"), "copy") == config


def test_an_override_changes_one_field_and_nothing_else() -> None:
    before, after = load_config("small").model_dump(), load_config("small", overrides=["training.epochs=7"]).model_dump()
    assert after["training"].pop("epochs") == 7
    assert before["training"].pop("epochs") == 3
    assert before == after


def test_an_override_reaches_nested_parts_lists_and_nulls() -> None:
    config = load_config(
        "small", overrides=["bootstrap.request.max_targets=4", "evaluation.cutoffs=[5, 10]", "data.window_days=null", "data.now="]
    )
    assert config.bootstrap.request.max_targets == 4
    assert config.evaluation.cutoffs == (5, 10)
    assert config.data.window_days is None
    assert config.data.now == ""


def test_a_misspelt_field_is_named_with_the_right_one() -> None:
    message = refusal("training.epoch=3")
    assert "training.epoch=3" in message
    assert "unknown setting" in message
    assert "did you mean 'epochs'?" in message


def test_a_misspelt_part_is_named_with_the_right_one() -> None:
    assert "there is no part 'trainng' (did you mean 'training'?)" in refusal("trainng.epochs=3")


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("training.epochs=many", ["training.epochs='many'", "integer", "got str"]),
        ("training.epochs=2.5", ["training.epochs=2.5", "got float"]),
        ("training.epochs='3'", ["training.epochs='3'", "got str"]),
        ("training.epochs=0", ["training.epochs=0", "greater than or equal to 1"]),
        ("training.schedule=sometimes", ["training.schedule='sometimes'", "'delayed'"]),
        ("training.temperature=.nan", ["training.temperature=nan", "finite"]),
        ("model.use_content=maybe", ["model.use_content='maybe'", "boolean"]),
        ("data.tables=[1]", ["data.tables=[1]", "string"]),
    ],
)
def test_a_wrong_value_is_refused_with_field_value_reason_and_remedy(override: str, parts: list[str]) -> None:
    message = refusal(override)
    for part in [*parts, f"set {override.partition('=')[0]} to such a value"]:
        assert part in message


def test_all_wrong_fields_are_reported_at_once() -> None:
    message = refusal("training.epochs=0", "model.dim=2")
    assert "2 setting(s)" in message
    assert "training.epochs=0" in message
    assert "model.dim=2" in message


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["model.dim=30", "model.num_heads=2"], ["model.dim=30", "multiple of 4", "use 32"]),
        (["model.dim=64", "model.num_heads=3"], ["model.num_heads=3", "model.dim=64"]),
        (["model.max_history=300"], ["model.max_history=300", "bootstrap.request.max_history=200", "lower the first or raise the second"]),
        (["data.actions=[{name: a}, {name: a}]"], ["data.actions", "a more than once"]),
        (["data.actions=[{name: hide, positive: false}]"], ["no positive action", "positive: true"]),
    ],
)
def test_contradictions_name_both_values_and_the_way_out(overrides: list[str], words: list[str]) -> None:
    message = refusal(*overrides)
    for word in words:
        assert word in message


@pytest.mark.parametrize("override", ["training.epochs", "=3", "  =3"])
def test_an_override_without_name_or_value_shows_how_to_write_one(override: str) -> None:
    assert "write it as part.field=value" in refusal(override)


def test_an_override_that_is_no_yaml_is_refused() -> None:
    assert "not YAML" in refusal("data.actions=[{")


def test_an_unknown_preset_is_named_with_the_known_ones() -> None:
    message = refusal(preset="demoo")
    assert "did you mean 'demo'?" in message
    assert "small" in message


def test_preset_and_file_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="both given"):
        load_config("demo", f"{tmp_path}/config.yaml")


def test_a_file_gives_the_same_config_as_its_preset(tmp_path: Path) -> None:
    file = f"{tmp_path}/config.yaml"
    Path(file).write_text(load_config("small").model_dump_json())
    assert load_config(file=file) == load_config("small")


@pytest.mark.parametrize(
    ("text", "why"), [("- 1\n", "a config is a mapping"), ("a: [", "is not YAML"), ("training: {}\n", "data: has no value")]
)
def test_a_file_that_holds_no_config_is_refused_by_name(tmp_path: Path, text: str, why: str) -> None:
    file = f"{tmp_path}/broken.yaml"
    Path(file).write_text(text)
    with pytest.raises(ConfigError, match=why) as caught:
        load_config(file=file)
    assert "broken.yaml" in str(caught.value)


def test_a_missing_file_is_refused_with_a_way_out() -> None:
    with pytest.raises(ConfigError, match="does not exist; check the path"):
        load_config(file="nowhere/config.yaml")


def test_settings_can_not_be_changed_after_they_were_checked() -> None:
    config = load_config("small")
    with pytest.raises(ValueError, match="frozen"):
        config.training.epochs = 5  # type: ignore[misc]


def test_every_setting_says_what_it_means() -> None:
    undescribed: list[str] = []

    def visit(model: type, path: str) -> None:
        for name, field in model.model_fields.items():  # type: ignore[attr-defined]
            inner = f"{path}{name}"
            if hasattr(field.annotation, "model_fields"):
                visit(field.annotation, f"{inner}.")
            elif not field.description and name not in ("seed", "enabled"):
                undescribed.append(inner)

    visit(PipelineConfig, "")
    assert undescribed == []


def test_an_override_reaches_a_part_that_the_file_leaves_out(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("training: {epochs: 5}\n")
    config = load_config(file=str(file), overrides=["data.tables=/t", "bootstrap.request.max_targets=4"])
    assert config.training.epochs == 5
    assert config.data.tables == "/t"
    assert config.bootstrap.request.max_targets == 4


def test_a_setting_is_not_taken_for_a_part() -> None:
    assert "'training.epochs' is one value, not a part with settings; write training.epochs=VALUE" in refusal("training.epochs.x=1")


def test_a_date_may_be_written_without_quotes() -> None:
    # YAML makes a date of it; the setting is an ISO time as text.
    assert load_config("small", overrides=["data.now=2026-01-01"]).data.now == "2026-01-01"
    assert load_config("small", overrides=["data.now=2026-01-01T12:00:00"]).data.now == "2026-01-01 12:00:00"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "a config is a mapping of parts .*got nothing"),
        (b"- training", "a config is a mapping of parts .*got list"),
        (b"training: [1, 2", "is not YAML"),
        (b"\x00\x01", "is not YAML"),
        (b"training: 3", "training=3: input should be an object"),
        (b"training: {epochs: 3}", r"data: has no value .*--set data\.NAME=VALUE.*tables"),
    ],
)
def test_a_file_that_holds_no_config_is_refused_in_few_lines(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_bytes(content)
    overrides = [] if b"epochs" in content else ["data.tables=/t"]
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(file=str(file), overrides=overrides)
    assert str(caught.value).count("\n") <= 1


def test_a_folder_is_no_config_file(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="can't be read"):
        load_config(file=str(tmp_path))
