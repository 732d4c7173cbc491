"""The house keeps its shape: dependencies point one way, components stay thin, every module says what it is."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("clrflow", "components", "pipelines")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if path.read_text().strip())
COMPONENTS = sorted((ROOT / "components").glob("*/component.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_dependencies_point_one_way() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_says_what_it_is_and_stays_below_500_lines(path: Path) -> None:
    text = path.read_text()
    assert ast.get_docstring(ast.parse(text)), "no module docstring"
    assert len(text.splitlines()) <= 500, "look for the second idea in it"


@pytest.mark.parametrize("path", COMPONENTS, ids=name_of)
def test_a_component_imports_only_the_standard_library_and_kfp_at_its_top(path: Path) -> None:
    tops: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            tops |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            tops.add((node.module or "").split(".")[0])
    # components holds the image's name only: plain text, nothing imported.
    assert tops - set(sys.stdlib_module_names) <= {"kfp", "components"}


@pytest.mark.parametrize("path", COMPONENTS, ids=name_of)
def test_a_component_hands_its_work_over(path: Path) -> None:
    functions = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
    assert [function.name for function in functions] == [path.parent.name]
    statements = functions[0].body[1:]  # without its docstring
    assert len(statements) <= 6, "a component passes places and numbers; its work belongs into clrflow"


def test_the_command_line_starts_without_kfp_torch_or_pydantic() -> None:
    code = (
        "import sys, pipelines.cli\n"
        "print(sorted({'kfp', 'torch', 'torchrec', 'pydantic', 'duckdb', 'matplotlib', 'kubernetes'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout.strip() == "[]"


def test_a_finished_step_is_looked_up_without_importing_what_does_its_work() -> None:
    code = (
        "import sys, importlib\n"
        "from clrflow.steps import STEPS\n"
        "for step in STEPS.values():\n"
        "    if step.outside:\n"
        "        importlib.import_module(step.outside.split(':')[0])\n"
        "print(sorted({'torch', 'torchrec', 'faiss', 'implicit', 'matplotlib', 'kfp'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout.strip() == "[]"


def test_pinned_versions_are_exact_and_hold_no_address() -> None:
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert len(pins) > 50
    for pin in pins:
        name, equals, version = pin.partition("==")
        assert equals, pin
        assert "@" not in pin, pin
        assert "//" not in pin, pin
        assert version, pin
        assert name.lower().replace("_", "-") not in ("clrflow", "fbgemm-gpu"), pin
