"""A component's page says what its code says."""

from __future__ import annotations

from pathlib import Path

import pytest

from clrflow.steps import STEPS
from components import readmes


def test_all_readmes_are_in_step_with_the_code() -> None:
    assert readmes.outdated() == [], "run: python -m components.readmes"


def test_a_readme_that_drifted_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in readmes.NAMES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "README.md").write_text(readmes.readme_of(name))
    monkeypatch.setattr(readmes, "FOLDER", tmp_path)
    assert readmes.main(["--check"]) == 0
    (tmp_path / "gate" / "README.md").write_text(readmes.readme_of("gate").replace("URI", "URL"))
    assert readmes.main(["--check"]) == 1
    assert "gate/README.md is out of date" in capsys.readouterr().out
    assert readmes.main([]) == 0
    assert readmes.main(["--check"]) == 0


@pytest.mark.parametrize("name", readmes.NAMES)
def test_every_parameter_and_output_is_described(name: str) -> None:
    rows = [line for line in readmes.readme_of(name).splitlines() if line.startswith("| `")]
    assert len(rows) >= 4
    for row in rows:
        assert len(row.split("|")[3].strip()) > 8, row


def test_there_is_one_component_a_step_and_the_one_that_begins_a_run() -> None:
    folders = {path.parent.name for path in Path(readmes.__file__).parent.glob("*/component.py")}
    assert folders == {"configure", *STEPS, "clean_up"}
