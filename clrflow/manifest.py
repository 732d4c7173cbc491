"""The small file that stands for a finished step: where its data lie, what they are, and what made them.

A manifest is written last, so a folder without one was never finished.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from clrflow import storage
from clrflow.errors import ClrflowError

SCHEMA_VERSION = 1
FILE_NAME = "manifest.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Output:
    """One named thing that a step wrote: a file or a folder of files."""

    uri: str
    fingerprint: str
    num_rows: int | None = None
    num_bytes: int = 0

    @classmethod
    def of(cls, uri: str, num_rows: int | None = None) -> Output:
        """Describe what lies at `uri` now."""
        return cls(uri=uri, fingerprint=storage.fingerprint(uri), num_rows=num_rows, num_bytes=storage.size_bytes(uri))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a finished step leaves behind for people and for the next steps."""

    step: str
    key: str
    uri: str
    """The folder that holds this manifest."""
    outputs: dict[str, Output]
    metrics: dict[str, float]
    """Finite scalars, shown in the UI."""
    facts: dict[str, Any]
    """Small values that later steps read: counts, times, hashes, paths of choices made."""
    config: dict[str, Any]
    """The settings that made it."""
    inputs: dict[str, str]
    """Fingerprint of each input by the name of the step that made it."""
    step_version: int
    duration_s: float = 0.0
    peak_memory_bytes: int = 0
    created_at: str = ""
    schema_version: int = SCHEMA_VERSION

    @property
    def fingerprint(self) -> str:
        """Equal for equal outputs and facts, whenever and wherever they were made."""
        contents = {name: output.fingerprint for name, output in self.outputs.items()}
        return storage.fingerprint_of(self.step, self.step_version, contents, self.facts)

    def output(self, name: str) -> str:
        """The URI of an output by name."""
        try:
            return self.outputs[name].uri
        except KeyError:
            raise ClrflowError(f"{self.uri}: step {self.step} has no output {name!r}; it has {', '.join(sorted(self.outputs))}.") from None

    @property
    def report_uri(self) -> str:
        return storage.join(self.uri, "report.html")

    def save(self) -> None:
        """Write it into its folder: from here on the step counts as finished."""
        storage.write_json(storage.join(self.uri, FILE_NAME), dataclasses.asdict(self))

    @classmethod
    def load(cls, folder: str) -> Manifest:
        raw = storage.read_json(storage.join(folder, FILE_NAME))
        if raw.get("schema_version") != SCHEMA_VERSION:
            raise ClrflowError(
                f"{folder}: manifest schema {raw.get('schema_version')}, this version reads {SCHEMA_VERSION}; "
                "delete the folder so that the step runs again."
            )
        outputs = {name: Output(**value) for name, value in raw["outputs"].items()}
        if raw["uri"] != folder:  # the workspace was moved since, and what lies below the folder with it
            for name, output in outputs.items():
                if output.uri.startswith(f"{raw['uri']}/"):
                    outputs[name] = dataclasses.replace(output, uri=storage.join(folder, output.uri.removeprefix(raw["uri"])))
        return cls(**{**raw, "uri": folder, "outputs": outputs})
