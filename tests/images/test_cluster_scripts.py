"""The scripts of the local cluster say what they can't do before they change anything; whether they work, `make test-cluster` shows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
LOCAL = ROOT / "tests" / "cluster" / "local"
CLUSTER = LOCAL / "cluster"
SCRIPTS = [
    CLUSTER,
    *sorted(LOCAL.glob("lib/*.sh")),
    ROOT / "images" / "build",
    ROOT / "images" / "efa" / "install.sh",
    ROOT / ".ci" / "run",
]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))

linux = pytest.mark.skipif(os.uname().sysname != "Linux", reason="the scripts are for Linux")


def run(*arguments: str, root: Path, path: str = "", **options: object) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": path or os.environ["PATH"], "HOME": str(root), "CLRFLOW_CLUSTER": str(root / "cluster")}
    return subprocess.run([str(CLUSTER), *arguments], capture_output=True, text=True, timeout=60, check=False, env=environment, **options)  # type: ignore[call-overload,no-any-return]


def only(tmp_path: Path, *programs: str) -> str:
    """A PATH that holds nothing but these programs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for program in ("bash", "env", "dirname", "cat", *programs):
        (folder / program).symlink_to(shutil.which(program) or pytest.fail(f"no {program}"))
    return str(folder)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_script_parses_and_may_be_run(script: Path) -> None:
    assert subprocess.run(["bash", "-n", script], timeout=60, check=False).returncode == 0
    assert script.suffix == ".sh" or os.access(script, os.X_OK)


@linux
def test_help_names_every_command_and_an_unknown_one_is_bad_input(tmp_path: Path) -> None:
    told = run("help", root=tmp_path)
    assert told.returncode == 0
    for command in ("check", "up", "down", "status", "images", "test", "crds", "restart", "enter"):
        assert re.search(rf"^  {command}\b", told.stdout, re.MULTILINE), command
    refused = run("sideways", root=tmp_path)
    assert refused.returncode == 2
    assert "unknown command 'sideways'" in refused.stderr


@linux
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody")
def test_who_is_not_root_is_told_so_and_what_to_do_instead() -> None:
    # A copy in a folder that everybody may enter: nobody may enter neither the tree nor pytest's folders everywhere.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        copy = shutil.copytree(LOCAL, Path(folder) / "tests" / "cluster" / "local")
        ended = subprocess.run(
            [str(copy / "cluster"), "check"], capture_output=True, text=True, timeout=60, check=False, user=65534, group=65534,
            env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", "CLRFLOW_CLUSTER": f"{folder}/cluster"}, cwd="/",
        )  # fmt: skip
    assert ended.returncode == 2
    assert "run it as root" in ended.stderr
    assert "KUBECONFIG=/path/to/kubeconfig make test-cluster" in ended.stderr


@linux
@pytest.mark.skipif(os.geteuid() != 0, reason="another refusal comes first")
@pytest.mark.parametrize(("missing", "has"), [("apt-get", ()), ("go", ("apt-get",))])
def test_a_missing_program_is_named(tmp_path: Path, missing: str, has: tuple[str, ...]) -> None:
    if any(shutil.which(program) is None for program in has):
        pytest.skip("not Debian")
    # The script adds the usual folders of root's programs to PATH; so this needs one that lies elsewhere.
    copy = shutil.copytree(LOCAL, tmp_path / "tests" / "cluster" / "local")
    common = copy / "lib" / "common.sh"
    common.write_text(re.sub(r"^export PATH=.*$", "", common.read_text(), flags=re.MULTILINE))
    ended = subprocess.run(
        [str(copy / "cluster"), "check"], capture_output=True, text=True, timeout=60, check=False,
        env={"PATH": only(tmp_path, "uname", "id", *has), "HOME": str(tmp_path)},
    )  # fmt: skip
    assert ended.returncode == 2
    assert f"there is no {missing}" in ended.stderr


@linux
@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("go") or not Path("/sys/fs/cgroup/memory").is_dir(), reason="another refusal comes first"
)
def test_two_commands_at_once_are_refused(tmp_path: Path) -> None:
    root = tmp_path / "cluster"
    (root / "bin").mkdir(parents=True)
    with subprocess.Popen(["flock", root / ".lock", "sleep", "60"]) as holder:
        try:
            while subprocess.run(["flock", "--nonblock", root / ".lock", "true"], check=False).returncode == 0:
                pass
            ended = run("down", root=tmp_path)
        finally:
            holder.terminate()
    assert ended.returncode == 1
    assert "another 'cluster' command is at work" in ended.stderr


@linux
def test_a_cluster_that_is_down_says_so(tmp_path: Path) -> None:
    assert run("status", root=tmp_path).returncode == 1
    ended = run("restart", "kube-apiserver", root=tmp_path)
    assert ended.returncode == 1
    assert "cluster up" in ended.stderr


def test_every_program_has_a_module_with_checksums_and_no_place_of_its_own() -> None:
    built = re.findall(r"^    build_module (\S+) ", (LOCAL / "lib" / "programs.sh").read_text(), re.MULTILINE)
    assert sorted(built) == sorted(folder.name for folder in (LOCAL / "modules").iterdir())
    for name in built:
        module = (LOCAL / "modules" / name / "go.mod").read_text()
        assert re.search(r"^module clrflow\.test/", module, re.MULTILINE)
        assert not re.search(r"=> [./]", module), "a replacement by a folder"
        assert (LOCAL / "modules" / name / "go.sum").stat().st_size > 1000


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda workflow: workflow.name)
def test_a_workflow_pins_its_actions_and_asks_for_no_rights(workflow: Path) -> None:
    loaded = yaml.safe_load(workflow.read_text())
    assert loaded["permissions"] == {"contents": "read"}
    steps = [step for job in loaded["jobs"].values() for step in job["steps"]]
    for step in steps:
        if "uses" in step:
            assert re.fullmatch(r"[\w.-]+/[\w.-]+@v\d+\.\d+\.\d+", step["uses"]), step["uses"]
    assert all("timeout-minutes" in job for job in loaded["jobs"].values())
    assert any("make test" in step.get("run", "") for step in steps)
