"""Every command: help with an example, exit code 0, 1 or 2, one clear message, JSON where a program may read it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clrflow import __version__, storage
from clrflow.configure import configure_run
from clrflow.errors import ClrflowError
from pipelines import console, run_report
from pipelines.cli import app

CLRFLOW = str(Path(sys.executable).with_name("clrflow"))
COMMANDS = [
    "run",
    "compile",
    "submit",
    "schedule",
    "gc",
    "query",
    "serve",
    "report",
    "doctor",
    "data check",
    "data movielens",
    "data synthetic",
]
runner = CliRunner()


def clrflow(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([CLRFLOW, *arguments], capture_output=True, text=True, timeout=120, cwd=cwd, check=False)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example(command: str) -> None:
    result = runner.invoke(app, [*command.split(), "--help"])
    assert result.exit_code == 0
    assert f"Example: clrflow {command}" in " ".join(result.output.replace("│", " ").split())


def test_help_is_there_within_a_second_and_names_every_command() -> None:
    started = time.monotonic()
    result = clrflow("--help")
    # 0.4 s on an idle core; the rest is room for a busy machine.
    assert time.monotonic() - started < 3
    assert result.returncode == 0
    for command in ("run", "compile", "submit", "schedule", "gc", "query", "serve", "report", "data", "doctor"):
        assert f" {command} " in result.stdout


def test_the_version_is_printed() -> None:
    result = runner.invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"clrflow {__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "--set", "training.epoch=3"], ["training.epoch=3", "did you mean 'epochs'?"]),
        (["run", "--set", "training.epochs"], ["training.epochs", "part.field=value"]),
        (["run", "--preset", "demoo"], ["demoo", "did you mean 'demo'?"]),
        (["run", "--config", "nowhere.yaml"], ["nowhere.yaml", "does not exist"]),
        (["run", "--set", "model.dim=30"], ["model.dim=30", "multiple of 4"]),
        (["run", "--name", "a/b"], ["run_name='a/b'"]),
        (["run", "--set", "data.tables={{folder}}"], ["{{folder}}", "macro"]),
        (["run", "--resume", "yesterday"], ["resume='yesterday'", "holds no run"]),
        (["report"], ["holds no runs", "--workspace"]),
        (["report", "--list"], ["holds no runs", "--workspace"]),
        (["gc", "nowhere"], ["nowhere holds no runs", "--workspace"]),
        (["submit", "--workspace", "/w", "--set", "data.tables=/t"], ["--endpoint is missing", "KFP_ENDPOINT"]),
        (["schedule"], ["--cron is missing"]),
        (["run", "--launcher", "slurm"], ["launch.launcher='slurm'", "'pytorchjob'"]),
        (["run", "--launcher", "pytorchjob"], ["launch.image is empty"]),
        (["compile", "--image", "Registry/x"], ["image 'Registry/x'", "registry.example"]),
        (["report", "yesterday"], ["yesterday", "holds no run.json"]),
        (["compile", "-o", "pipeline.json"], ["pipeline.json", ".yaml"]),
        (["compile", "-o", "/proc/pipeline.yaml"], ["/proc/pipeline.yaml", "can't be written"]),
        (["run", "--workspace", "/proc/nothing"], ["/proc/nothing", "can't be written"]),
        (["run", "--set", "data.tables=a", "--set", "training.epochs"], ["training.epochs", "part.field=value"]),
        (["run", "--preset", "small", "--config", "c.yaml"], ["--preset small", "--config c.yaml", "give one"]),
        (["query", "/proc/version", "--user", "1"], ["/proc/version"]),
    ],
)
def test_bad_input_ends_with_code_2_and_one_message_and_nothing_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    result = runner.invoke(app, arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    for word in words:
        assert word in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_message_on_the_real_command_line_has_no_traceback(tmp_path: Path) -> None:
    result = clrflow("run", "--set", "training.epoch=3", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith("error: preset small: 1 setting(s) can't be used:")
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("arguments", [["nosuch"], ["run", "--nosuch"], ["query"], ["compile", "extra"]])
def test_wrong_usage_ends_with_code_2(arguments: list[str]) -> None:
    assert runner.invoke(app, arguments).exit_code == 2


def test_a_failure_of_the_work_ends_with_code_1_and_an_unexpected_one_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(error: Exception) -> None:
        def raising(workspace: str = "") -> list[str]:
            raise error

        monkeypatch.setattr(run_report, "run_names", raising)

    fail(ClrflowError("the work failed."))
    known = runner.invoke(app, ["report", "--list"])
    assert known.exit_code == 1
    assert "error: the work failed." in known.stderr
    fail(ZeroDivisionError("division by zero"))
    unknown = runner.invoke(app, ["report", "--list"])
    assert unknown.exit_code == 1
    assert isinstance(unknown.exception, ZeroDivisionError)


def test_runs_are_listed_newest_first_and_the_newest_is_the_default(tmp_path: Path) -> None:
    for name in ("b", "a"):
        configure_run(preset="small", workspace=str(tmp_path), run_name=name)
        time.sleep(0.02)
    listed = runner.invoke(app, ["report", "--list", "--json", "--workspace", str(tmp_path)])
    assert json.loads(listed.output) == ["a", "b"]
    newest = runner.invoke(app, ["report", "--workspace", str(tmp_path)])
    assert newest.output.strip() == str(tmp_path / "runs/a/report.html")
    assert "<h1>Run a</h1>" in (tmp_path / "runs/a/report.html").read_text()


def test_the_page_of_a_failed_run_says_what_failed_and_obeys_no_markup(tmp_path: Path) -> None:
    run = configure_run(preset="small", workspace=str(tmp_path), run_name="r")
    storage.write_json(storage.join(run.uri, "failure.json"), {"step": "bootstrap", "kind": "x", "message": "<b>no</b>", "exit_code": 1})
    html = storage.read_bytes(run_report.write_report(run)).decode()
    assert "bootstrap failed." in html
    assert "&lt;b&gt;no&lt;/b&gt;" in html


def test_compile_prints_its_parameters_for_programs(tmp_path: Path) -> None:
    result = runner.invoke(app, ["compile", "-o", str(tmp_path / "p.yaml"), "--json"])
    assert result.exit_code == 0
    told = json.loads(result.output)
    assert told["bytes"] == (tmp_path / "p.yaml").stat().st_size
    assert told["parameters"]["preset"] == "small"


def test_query_needs_no_kubeflow() -> None:
    code = "import sys; import clrflow.serving.query; print('kfp' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert found.stdout.strip() == "False"


def test_a_table_lines_numbers_up_to_the_right_and_shows_a_dash_for_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_table(["step", "seconds", "MB"], [["a", "0.9", None], ["train", "1,294.2", 12]])
    assert capsys.readouterr().out.splitlines() == ["step   seconds  MB", "a          0.9   –", "train  1,294.2  12"]
