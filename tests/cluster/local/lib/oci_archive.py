#!/usr/bin/env python3
"""oci_archive.py ROOTFS NAME:TAG OUT.tar [COMMAND...]: a folder becomes an OCI image archive of one layer; needs no registry and no daemon."""

import hashlib
import io
import json
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

MEDIA_TYPE = "application/vnd.oci.image."


def digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def to_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def manifest(config: bytes, layers: list[tuple[str, int]]) -> bytes:
    """The manifest of an image; `layers` are digests and sizes, lowest first."""
    return to_json(
        {
            "schemaVersion": 2,
            "mediaType": MEDIA_TYPE + "manifest.v1+json",
            "config": {"mediaType": MEDIA_TYPE + "config.v1+json", "digest": digest(config), "size": len(config)},
            "layers": [{"mediaType": MEDIA_TYPE + "layer.v1.tar", "digest": layer, "size": size} for layer, size in layers],
        }
    )


def index(name: str, image: bytes) -> bytes:
    names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
    entry = {"mediaType": MEDIA_TYPE + "manifest.v1+json", "digest": digest(image), "size": len(image), "annotations": names}
    return to_json({"schemaVersion": 2, "manifests": [entry]})


def write_archive(out: Path, name: str, image: bytes, blobs: dict[str, Any]) -> None:
    """Write an archive that holds one image; `blobs` maps digests to bytes or to (open file, size)."""
    with tarfile.open(out, "w") as archive:

        def add(path: str, content: Any) -> None:
            entry = tarfile.TarInfo(path)
            entry.mode = 0o644
            source, entry.size = (io.BytesIO(content), len(content)) if isinstance(content, bytes) else content
            archive.addfile(entry, source)

        add("oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        add("index.json", index(name, image))
        for key, content in {digest(image): image, **blobs}.items():
            add("blobs/" + key.replace(":", "/"), content)


def _without_owner_and_time(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.mtime, entry.uname, entry.gname = 0, "", ""
    return entry


def main(rootfs: Path, name: str, out: Path, command: list[str]) -> None:
    with tempfile.NamedTemporaryFile(dir=out.parent) as layer:
        with tarfile.open(fileobj=layer, mode="w") as files:
            for entry in sorted(rootfs.iterdir()):
                files.add(entry, arcname=entry.name, filter=_without_owner_and_time)
        size = layer.tell()
        layer.seek(0)
        layer_digest = "sha256:" + hashlib.file_digest(layer, "sha256").hexdigest()
        layer.seek(0)
        config = to_json(
            {
                "architecture": "amd64",
                "os": "linux",
                "rootfs": {"type": "layers", "diff_ids": [layer_digest]},
                "history": [{"created_by": "oci_archive.py"}],  # buildah refuses to build on an image without a history
                "config": {
                    "Cmd": command,
                    "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
                    "WorkingDir": "/",
                },
            }
        )
        image = manifest(config, [(layer_digest, size)])
        write_archive(out, name, image, {digest(config): config, layer_digest: (layer, size)})


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4:])
