"""The whole pipeline on a small synthetic log, by the command line, as a person runs it.

One story in the order of a real week: a run is killed in the middle of training, the same command finishes it, the index answers, a second
run finds all its steps, and new data under the same path are trained on.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from clrflow import storage
from clrflow.steps import STEPS, Run, step_key

pytestmark = pytest.mark.e2e

CLRFLOW = str(Path(sys.executable).with_name("clrflow"))
RUN = (
    "run", "--preset", "small", "--workspace", "w",
    "--set", "data.tables=tables", "--set", "semantic_ids.num_codes=16", "--set", "semantic_ids.max_epochs=10",
    "--set", "model.dim=16", "--set", "model.num_layers=1", "--set", "training.schedule=co_train", "--set", "training.epochs=2",
    "--set", "training.num_negatives=32", "--set", "gate.beat_popularity=false",
)  # fmt: skip
HEAVY = ("validate_data", "bootstrap", "semantic_ids", "train", "evaluate", "gate", "export_index")


def clrflow(folder: Path, *arguments: str, expect: int = 0) -> str:
    result = subprocess.run([CLRFLOW, *arguments], cwd=folder, capture_output=True, text=True, timeout=400, check=False)
    assert result.returncode == expect, result.stdout + result.stderr
    return result.stdout


def states(output: str) -> dict[str, str]:
    """`✓ train found (0.9s)` → {"train": "found"}."""
    return {line.split()[1]: line.split()[2] for line in output.splitlines() if line.startswith("✓ ")}


def interrupted(folder: Path, when: str, how: Callable[[subprocess.Popen[str]], None]) -> tuple[int, str]:
    """Start a run, do `how` to it once it prints a line that holds `when`; its exit code and what it printed."""
    command = [CLRFLOW, *RUN]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if when in line:
                how(process)
                break
        said.append(process.stdout.read())
        return process.wait(timeout=60), "".join(said)


def kill_step(process: subprocess.Popen[str]) -> None:
    """SIGKILL to the process in which the step runs: no handler, no goodbye."""
    steps = [child for child in psutil.Process(process.pid).children(recursive=True) if "kfp.dsl.executor_main" in child.cmdline()]
    assert steps
    steps[-1].send_signal(signal.SIGKILL)


def terminate(process: subprocess.Popen[str]) -> None:
    os.kill(process.pid, signal.SIGTERM)


def no_process_left(folder: Path, within_s: float = 10.0) -> bool:
    """True once no process works in the folder any more."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        alive = []
        for process in psutil.process_iter(["cmdline", "pid"]):
            if process.pid != os.getpid() and any(str(folder) in part for part in process.info["cmdline"] or ()):
                alive.append(process)
        if not alive:
            return True
        time.sleep(0.2)
    return False


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("e2e")
    told = clrflow(
        folder,
        *["data", "synthetic", "tables", "--users", "80", "--items", "150", "--days", "12", "--seed", "1", "--events-per-user", "30"],
    )
    assert "synthetic log in tables" in told
    return folder


@pytest.fixture(scope="module")
def killed(folder: Path) -> str:
    code, said = interrupted(folder, when="▸ train", how=kill_step)
    assert code == 1, said
    return said


@pytest.fixture(scope="module")
def finished(folder: Path, killed: str) -> str:
    return clrflow(folder, *RUN, "--name", "finished")


def test_kill_9_in_training_fails_the_run_with_a_clear_message_and_leaves_nothing_behind(folder: Path, killed: str) -> None:
    assert "error: step train was killed (by hand, or by the system when memory ran out). Run the same command again" in killed
    assert "Traceback" not in killed
    assert no_process_left(folder)
    assert not list((folder / "w/steps").glob("train/*/manifest.json"))


def test_the_same_command_goes_on_from_the_last_finished_step(finished: str) -> None:
    assert states(finished) == {
        "configure": "finished",
        **dict.fromkeys(("validate_data", "bootstrap", "semantic_ids"), "found"),
        **dict.fromkeys(("train", "evaluate", "gate", "export_index", "publish", "clean_up"), "finished"),
    }


def test_a_run_ends_with_the_model_beside_the_baselines_the_times_and_the_report(folder: Path, finished: str) -> None:
    table = finished[finished.index("On the held-out requests") :]
    for row in ("model ", "popularity", "itemknn", "als", "heuristic"):
        assert f"\n{row}" in table
    assert "Time by step" in finished
    assert "gate      publish:" in finished
    report = folder / "w/runs/finished/report.html"
    assert f"report    {report}" in finished
    html = report.read_text()
    assert all(f"<summary>{step}<span>" in html for step in STEPS if step != "evaluate")
    assert "http" not in html.replace("http://www.w3.org", ""), "a report that loads something from elsewhere isn't whole"


def test_every_step_left_a_page_and_finite_metrics(folder: Path, finished: str) -> None:
    for step in STEPS:
        uri = storage.read_json(str(folder / f"w/runs/finished/{step}.json"))["uri"]
        manifest = storage.read_json(storage.join(uri, "manifest.json"))  # written with allow_nan=False
        assert manifest["outputs"], step
        assert "<html" in storage.read_bytes(storage.join(uri, "report.html")).decode(), step


def test_the_published_index_answers_a_user_under_several_conditions(folder: Path, finished: str) -> None:
    states_uri = next((folder / "w/published").glob("*/**/user_states.parquet"))
    users = pq.read_table(states_uri, columns=["user_id", "conditions"]).to_pylist()
    user, condition = next((row["user_id"], found) for row in users for found in row["conditions"] if found["type"] == "interest")
    arguments = [
        "query",
        "w",
        "--user",
        str(user),
        "--condition",
        f"interest:{condition['id']}",
        "--condition",
        "item:3",
        "-k",
        "5",
        "--json",
    ]
    answers = json.loads(clrflow(folder, *arguments))["answers"]
    assert [answer["condition"].split()[0] for answer in answers] == [f"interest:{condition['id']}", "item:3"]
    for answer in answers:
        assert len({item["item_id"] for item in answer["items"]}) == 5
        scores = [item["score"] for item in answer["items"]]
        assert scores == sorted(scores, reverse=True)
        assert all(item["title"] for item in answer["items"])


def test_a_condition_that_is_none_is_refused_with_code_2(folder: Path, finished: str) -> None:
    clrflow(folder, "query", "w", "--user", "1", "--condition", "colour:5", expect=2)


def test_the_demo_picks_its_questions_by_itself_and_prints_the_report_last(folder: Path, finished: str) -> None:
    command = [sys.executable, "-m", "pipelines.demo_queries", "w"]
    said = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=True).stdout
    assert said.count("$ clrflow query w --user ") == 3
    assert said.splitlines()[-1] == f"report {folder / 'w/runs/finished/report.html'}"


def test_a_second_run_finds_every_step_and_is_quick(folder: Path, finished: str) -> None:
    started = time.monotonic()
    again = clrflow(folder, *RUN, "--resume", "finished", expect=2)  # settings and --resume together contradict each other
    assert again == ""
    again = clrflow(folder, "run", "--resume", "finished", "--workspace", "w")
    took = time.monotonic() - started
    assert {step: state for step, state in states(again).items() if step in HEAVY} == dict.fromkeys(HEAVY, "found")
    assert "(already published)" in again
    # About 10 s on an idle core; the rest is room for a busy machine.
    assert took < 60


def test_new_data_under_the_same_path_are_trained_on(folder: Path, finished: str) -> None:
    file = next((folder / "tables/events").glob("*.parquet")) if (folder / "tables/events").is_dir() else folder / "tables/events.parquet"
    events = pq.read_table(file)
    pq.write_table(events.filter(pc.not_equal(events["user_id"], events["user_id"][0])), file)
    # Stopped once the new tables are clean: that train's key is another one says that it would be done anew.
    code, said = interrupted(folder, when="▸ bootstrap", how=terminate)
    assert code == 130
    assert states(said)["validate_data"] == "finished"
    assert "interrupted. Run the same command again" in said
    assert no_process_left(folder)
    before = Run.load(str(folder / "w/runs/finished"))
    names = STEPS["train"].inputs
    old = {name: manifest for name in names if (manifest := before.manifest_of(name)) is not None}
    now = Run.load(str(max((folder / "w/runs").glob("*/validate_data.json"), key=lambda path: path.stat().st_mtime).parent))
    new_tables = now.manifest_of("validate_data")
    assert new_tables is not None
    assert len(old) == len(names)
    assert step_key(STEPS["train"], before, old) == Path(storage.read_json(str(folder / "w/runs/finished/train.json"))["uri"]).name
    assert step_key(STEPS["train"], now, {**old, "validate_data": new_tables}) != step_key(STEPS["train"], before, old)
