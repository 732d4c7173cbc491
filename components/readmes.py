"""Writes each component's README from its docstring and signature, so that the page can't say anything else than the code.

`python -m components.readmes` writes them; `--check` only says which are out of date (exit code 1). A test runs the check.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

import docstring_parser

from clrflow.settings import Settings
from clrflow.steps import STEPS

FOLDER = Path(__file__).parent
NAMES = ("configure", *STEPS, "clean_up")
_KINDS = {"STRING": "text", "NUMBER_INTEGER": "whole number", "NUMBER_DOUBLE": "number", "BOOLEAN": "yes or no"}


def readme_of(name: str) -> str:
    """The whole README of a component."""
    component = importlib.import_module(f"components.{name}.component").__dict__[name]
    doc = docstring_parser.parse(inspect.getdoc(component.python_func) or "")
    texts = {param.arg_name: (param.description or "").replace("\n", " ") for param in doc.params}
    spec: Any = component.component_spec
    lines = [f"# {name}", "", doc.short_description or "", ""]
    if doc.long_description:
        lines += [" ".join(doc.long_description.split()), ""]
    lines += ["| parameter | type | meaning |", "|---|---|---|"]
    lines += [f"| `{key}` | {_kind(value.type)} | {_cell(texts[key])} |" for key, value in spec.inputs.items()]
    lines += ["", "| output | type | meaning |", "|---|---|---|"] if spec.outputs else []
    returns = doc.returns.description if doc.returns and doc.returns.description else ""
    for key, value in (spec.outputs or {}).items():
        lines.append(f"| `{key}` | {_kind(value.type)} | {_cell(returns if key == 'Output' else texts[key])} |")
    lines += ["", *_about(name), ""]
    return "\n".join(lines)


def _about(name: str) -> list[str]:
    """Where the work is, what it reads, and the settings that it obeys."""
    if name == "configure":
        return ["The work is done by `clrflow.configure:configure_run`; the settings are those of `clrflow.config:PipelineConfig`."]
    if name == "clean_up":
        return ["The work is done by `clrflow.ending:end_run`; it reads the run's own settings (`launch`) and its gate's decision."]
    step = STEPS[name]
    lines = [f"The work is done by `{step.code}`; a finished result is found again by its inputs, its settings and the step's version."]
    if step.outside:
        lines.append(f"What it reads besides its inputs counts too: `{step.outside}`.")
    lines += ["", "Settings that it reads:", ""]
    return lines + [f"- `{part}` (`{_settings_class(part)}`)" for part in step.settings]


def _settings_class(part: str) -> str:
    from clrflow.config import PipelineConfig

    kind = PipelineConfig.model_fields[part].annotation
    assert isinstance(kind, type)
    assert issubclass(kind, Settings)
    return f"{kind.__module__}:{kind.__name__}"


def _kind(name: str) -> str:
    return _KINDS.get(name, {"String": "text", "Integer": "whole number"}.get(name, name.split("@")[0].removeprefix("system.")))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def outdated() -> list[str]:
    """Names of the components whose README isn't what readme_of says."""
    return [name for name in NAMES if not _path(name).is_file() or _path(name).read_text() != readme_of(name)]


def _path(name: str) -> Path:
    return FOLDER / name / "README.md"


def main(arguments: list[str]) -> int:
    stale = outdated()
    if "--check" in arguments:
        for name in stale:
            print(f"{_path(name)} is out of date; run python -m components.readmes")
        return 1 if stale else 0
    for name in stale:
        _path(name).write_text(readme_of(name))
        print(f"wrote {_path(name)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
