#!/usr/bin/env python3
"""share_layers.py STORE ARCHIVE IMAGE -- CTR...: an image in buildah's overlay store becomes a containerd image without a copy.

Each layer's folder is hard-linked into a containerd snapshot whose name is the layer's chain id. containerd looks for that name before it
unpacks a layer, so an archive that holds the real configuration and tiny stand-ins for the layers is enough to import. STORE and
containerd's own folder must be on one file system. For tests only: the manifest's layer digests are those of the stand-ins.
CTR... is the command that reaches containerd.
"""

import base64
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

from oci_archive import digest, manifest, write_archive


class Containerd:
    def __init__(self, command: list[str]):
        self.command = command

    def __call__(self, *arguments: str, may_fail: bool = False) -> str | None:
        """What it printed; None where it failed and may."""
        ran = subprocess.run([*self.command, *arguments], capture_output=True, text=True, check=False)
        if ran.returncode and not may_fail:
            sys.exit(f"share_layers.py: {' '.join(arguments)} failed: {ran.stderr.strip()}")
        return None if ran.returncode else ran.stdout

    def writable_folder(self, key: str, parent: str) -> Path:
        """A new snapshot's own folder."""
        self("snapshots", "rm", key, may_fail=True)
        mounts = json.loads(self("snapshots", "prepare", "--mounts", key, *([parent] if parent else [])) or "")
        mount = {name.lower(): value for name, value in mounts[0].items()}
        upper = [option.removeprefix("upperdir=") for option in mount["options"] if option.startswith("upperdir=")]
        return Path(upper[0] if upper else mount["source"])  # the lowest layer is a plain folder, not an overlay


class Store:
    """buildah's store: what its JSON files say of an image."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.images: list[dict[str, Any]] = json.loads((folder / "overlay-images/images.json").read_text())
        self.layers = {layer["id"]: layer for layer in json.loads((folder / "overlay-layers/layers.json").read_text())}

    def image(self, name: str) -> dict[str, Any]:
        for image in self.images:
            if name in image.get("names", []):
                return image
        sys.exit(f"share_layers.py: no image {name} in {self.folder}; build it first")

    def config(self, image: dict[str, Any]) -> bytes:
        def blob(key: str) -> bytes:
            # A key that isn't a plain word is a file named by its base64.
            name = key if key == "manifest" else "=" + base64.b64encode(key.encode()).decode()
            return (self.folder / "overlay-images" / image["id"] / name).read_bytes()

        return blob(json.loads(blob("manifest"))["config"]["digest"])

    def chain(self, image: dict[str, Any]) -> list[str]:
        """Ids of its layers, lowest first."""
        ids: list[str] = []
        layer = image["layer"]
        while layer:
            ids.insert(0, layer)
            layer = self.layers[layer].get("parent")
        return ids


def main(store: Store, archive: Path, name: str, containerd: Containerd) -> None:
    image = store.image(name)
    config = store.config(image)
    layers = json.loads(config)["rootfs"]["diff_ids"]
    chain = store.chain(image)
    if len(chain) != len(layers):
        sys.exit(f"share_layers.py: {name} has {len(chain)} layers in the store but names {len(layers)}")

    parent = ""
    for layer_id, layer in zip(chain, layers, strict=True):
        snapshot = digest(f"{parent} {layer}".encode()) if parent else layer
        if containerd("snapshots", "info", snapshot, may_fail=True) is None:
            key = "shared-" + layer_id[:12]
            folder = containerd.writable_folder(key, parent)
            source = store.folder / "overlay" / layer_id / "diff"
            subprocess.run(["cp", "--archive", "--link", "--preserve=all", f"{source}/.", str(folder)], check=True)
            containerd("snapshots", "commit", snapshot, key)
        parent = snapshot

    stand_ins = [stand_in(number) for number in range(len(layers))]
    made = manifest(config, [(digest(data), len(data)) for data in stand_ins])
    write_archive(archive, name, made, {digest(config): config, **{digest(data): data for data in stand_ins}})
    containerd("images", "import", str(archive))
    archive.unlink()


def stand_in(number: int) -> bytes:
    """A layer's archive with one empty file; each must differ, as a manifest may not name one layer twice."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        layer.addfile(tarfile.TarInfo(f"stand-in-{number}"))
    return buffer.getvalue()


if __name__ == "__main__":
    separator = sys.argv.index("--")
    store_folder, archive_file, image_name = sys.argv[1:separator]
    main(Store(Path(store_folder)), Path(archive_file), image_name, Containerd(sys.argv[separator + 1 :]))
