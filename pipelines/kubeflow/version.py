"""Which version of the pipeline is uploaded: named after the source's revision and the compiled content, so that equal content is found again.

A revision alone would not do: the compiled specification also holds mounts, secrets' names and images, which come from settings. The content
alone would not do either: a change in clrflow's own code changes nothing in the specification, whose steps only call it.
"""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

from clrflow import __version__

_ROOT = Path(__file__).parents[2]
_PACKAGES = ("clrflow", "components", "pipelines")


def version_name(compiled: bytes, root: Path = _ROOT) -> str:
    """`<commit>-<hash of the compiled pipeline>`; with local changes `<commit>-dirty-<their hash>-<…>`; outside git `v<version>-<…>`."""
    return f"{revision(root)}-{content_hash(compiled)[:8]}"


def content_hash(compiled: bytes) -> str:
    return hashlib.sha256(compiled).hexdigest()[:16]


def revision(root: Path = _ROOT) -> str:
    """The git commit of the source in `root` (12 digits), with `-dirty-` and a hash where it has local changes; else clrflow's version."""
    try:
        commit = _git(root, "rev-parse", "HEAD").decode().strip()
        _git(root, "ls-files", "--error-unmatch", "--", "pipelines/cli.py")  # a repository around an installed package is another one's
        changed = _git(root, "diff", "HEAD", "--", *_PACKAGES)
        added = _git(root, "ls-files", "--others", "--exclude-standard", "-z", "--", *_PACKAGES).split(b"\0")
    except (OSError, subprocess.CalledProcessError):
        return f"v{__version__}"
    digest = hashlib.sha256(changed)
    for name in sorted(filter(None, added)):
        digest.update(name + b"\0" + (root / name.decode()).read_bytes())
    dirty = f"-dirty-{digest.hexdigest()[:8]}" if changed or any(added) else ""
    return f"{commit[:12]}{dirty}"


def _git(root: Path, *arguments: str) -> bytes:
    return subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, check=True, timeout=60).stdout
