"""The Dockerfile keeps its promises without being built: pinned, no address, last user not root, nothing in an image that it doesn't need."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

from clrflow.launch import worker

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "images" / "Dockerfile"
TARGETS = [line.split() for line in (ROOT / "images" / "targets.txt").read_text().splitlines()]
FINAL = [*(target for target, _, _ in TARGETS), "spark"]


@dataclasses.dataclass(frozen=True)
class Stage:
    name: str
    parent: str
    lines: list[tuple[str, str]]

    def all(self, word: str) -> list[str]:
        return [rest for instruction, rest in self.lines if instruction == word]


def read() -> tuple[list[tuple[str, str]], dict[str, Stage]]:
    """Instructions before the first stage, and the stages by name."""
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE)
    instructions = [tuple(line.split(None, 1)) for line in re.sub(r"\\\n\s*", " ", text).splitlines() if line.strip()]
    first = next(number for number, (word, _) in enumerate(instructions) if word == "FROM")
    stages: dict[str, Stage] = {}
    for word, rest in instructions[first:]:
        if word == "FROM":
            parent, _, name = rest.partition(" AS ")
            stages[name] = Stage(name, parent, [])
        else:
            list(stages.values())[-1].lines.append((word, rest))
    return instructions[:first], stages


GLOBAL, STAGES = read()


def chain(name: str) -> list[Stage]:
    """A stage and all that it stands on, lowest first."""
    found: list[Stage] = []
    while name in STAGES:
        found.insert(0, STAGES[name])
        name = STAGES[name].parent
    return found


def test_every_stage_stands_on_an_earlier_one_or_on_the_base_that_can_be_replaced() -> None:
    seen = {"${BASE}"}
    for stage in STAGES.values():
        assert stage.parent in seen, stage
        seen.add(stage.name)


def test_every_version_is_an_argument_with_an_exact_default() -> None:
    arguments = [rest for word, rest in GLOBAL if word == "ARG"] + [rest for stage in STAGES.values() for rest in stage.all("ARG")]
    versions = [argument for argument in arguments if argument.partition("=")[0].endswith("_VERSION")]
    assert {name.partition("=")[0] for name in versions} == {"PIP_VERSION", "SETUPTOOLS_VERSION", "FBGEMM_VERSION", "EFA_VERSION"}
    for version in versions:
        assert re.fullmatch(r"[A-Z_]+=\d+(\.\d+)+", version), version
    assert "BASE=python:3.11-slim-bookworm" in arguments


def test_nothing_is_fetched_from_an_address_and_no_tag_moves() -> None:
    text = DOCKERFILE.read_text() + (ROOT / "images" / "efa" / "install.sh").read_text()
    assert "://" not in text
    assert ":latest" not in text
    assert not any(stage.all("ADD") for stage in STAGES.values())


def test_every_installation_is_bound_to_pins() -> None:
    for stage in STAGES.values():
        for run in stage.all("RUN"):
            for install in re.findall(r"(?:pip|(?<!apt-get )(?<!-)install\"?|\$install)[^&]*", run):
                if " install " in f" {install} " or install.startswith("$install"):
                    assert re.search(r"==|-c |--no-index|-r kfp\.txt|no-cache-dir --only-binary :all:\"", install), install


@pytest.mark.parametrize("target", FINAL)
def test_an_image_runs_as_a_user_who_is_not_root(target: str) -> None:
    last = STAGES[target].lines
    assert STAGES[target].all("USER") == ["10001:10001"]
    after = last[last.index(("USER", "10001:10001")) :]
    assert not [word for word, _ in after if word in ("RUN", "COPY")], "what root made would come after"


@pytest.mark.parametrize("target", FINAL)
def test_an_image_says_what_it_is_and_what_it_was_made_from(target: str) -> None:
    labels = " ".join(STAGES[target].all("LABEL"))
    for name in ("title", "description", "licenses", "version", "revision"):
        assert f"org.opencontainers.image.{name}=" in labels


@pytest.mark.parametrize("target", FINAL)
def test_the_code_is_the_last_layer(target: str) -> None:
    assert STAGES[target].all("COPY") == ["--from=code /code /opt/clrflow/code"]
    assert not STAGES[target].all("RUN")


@pytest.mark.parametrize(
    ("target", "has", "has_not"),
    [
        ("data", {"base.txt", "data.txt", "kfp.txt", "launcher.txt"}, {"torch.txt", "train.txt"}),
        ("spark", {"base.txt", "data.txt"}, {"torch.txt", "train.txt"}),
        ("torch-cpu", {"torch.txt", "train.txt", "data.txt", "kfp.txt", "launcher.txt"}, set()),
        ("trainer", {"torch.txt", "train.txt"}, {"kfp.txt", "launcher.txt", "data.txt"}),
        ("serving", {"torch.txt", "serving.txt"}, {"kfp.txt", "launcher.txt", "train.txt"}),
    ],
)
def test_an_image_holds_what_it_needs_and_no_more(target: str, has: set[str], has_not: set[str]) -> None:
    installed = set(re.findall(r"[a-z]+\.txt", " ".join(run for stage in chain(target) for run in stage.all("RUN"))))
    assert has <= installed
    assert not has_not & installed


def test_the_cuda_trainer_has_efa_and_tries_its_operators_when_a_pod_starts() -> None:
    assert ("ARG", "ACCEL=cpu") in GLOBAL
    assert "CLRFLOW_ACCEL=${ACCEL}" in STAGES["trainer"].all("ENV")
    assert worker.ACCEL == "CLRFLOW_ACCEL"
    runs = [run for stage in chain("trainer") for run in stage.all("RUN")]
    assert any('if [ "${ACCEL}" = cuda ]; then sh /efa/install.sh "${EFA_VERSION}" "${EFA_SHA256}"' in run for run in runs)
    assert any(re.search(r'cuda\) fbgemm="fbgemm-gpu==\S+ check="--wheels-only".*operators\.py \$\{check\}', run) for run in runs)


def test_what_the_dockerfile_copies_is_there_and_let_through() -> None:
    let_through = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for stage in STAGES.values():
        for copy in stage.all("COPY"):
            if copy.startswith("--from="):
                continue
            for source in copy.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert any(f"{source}/".startswith(f"{allowed}/") or allowed.startswith(f"{source}/") for allowed in let_through), source


def test_each_layer_gets_requirements_that_constraints_pin(tmp_path: Path) -> None:
    script, project, constraints = ROOT / "images" / "requirements.py", ROOT / "pyproject.toml", ROOT / "constraints.txt"
    subprocess.run([sys.executable, script, project, constraints, tmp_path], check=True, timeout=60)

    def name(line: str) -> str:
        return re.split(r"[\[<>=!~; ]", line)[0].lower().replace("_", "-")

    pinned = {name(pin) for pin in (tmp_path / "constraints.txt").read_text().split("\n") if pin}
    for file in tmp_path.glob("*.txt"):
        wanted = {name(line) for line in file.read_text().splitlines() if line}
        assert wanted, file.name
        assert wanted <= pinned, f"{file.name}: constraints.txt pins no {wanted - pinned}"


def test_a_package_that_is_pinned_nowhere_is_named(tmp_path: Path) -> None:
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("kfp==2.17.3\n")
    script = ROOT / "images" / "requirements.py"
    ended = subprocess.run(
        [sys.executable, script, ROOT / "pyproject.toml", constraints, tmp_path / "out"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert "pins no kubernetes" in ended.stderr
