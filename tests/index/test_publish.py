"""Publishing: all or nothing for every reader, whatever is killed in between."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from clrflow import storage
from clrflow.errors import ClrflowError
from clrflow.index.bundle import load
from clrflow.index.publish import DRAFT, next_version, publish_version, retire
from clrflow.index.published import PROFILE, published_folder, read_published, versions
from clrflow.manifest import Output


@pytest.fixture
def published(factory) -> str:
    return published_folder(factory.workspace)


def names_in(published: str) -> list[str]:
    """Everything in the folder, hidden names too, but the lock."""
    return sorted(entry.name for entry in Path(published).iterdir() if entry.name != ".lock")


class TestPublishing:
    def test_makes_the_bundle_current(self, factory, published):
        bundle = factory.export([1, 2, 3])
        facts = factory.publish(bundle).manifest.facts
        current = read_published(published)
        assert (facts["published"], facts["changed"]) == (current.version, True)
        assert current.fingerprint == bundle.outputs["index"].fingerprint
        assert load(factory.workspace).num_items == 3
        assert storage.exists(storage.join(current.uri, "evaluation", "evaluation.json"))
        assert storage.list_files(storage.join(current.uri, "evaluation", "per_request"), ".parquet")

    def test_says_what_the_data_were_like_that_the_model_was_trained_from(self, factory, published):
        profile = str(factory.folder / "profile.json")
        storage.write_json(profile, {"version": 1})
        validated = factory.manifest("validate_data", {"profile": Output.of(profile)})
        storage.write_json(storage.join(factory.run(), "validate_data.json"), {"uri": validated, "reused": False})
        factory.publish(factory.export([1, 2, 3]))
        assert storage.read_json(storage.join(read_published(published).uri, PROFILE)) == {"version": 1}

    def test_the_same_bundle_twice_changes_nothing(self, factory, published):
        bundle = factory.export([1, 2, 3])
        first = factory.publish(bundle).manifest.facts["published"]
        before = (Path(published) / "current.json").stat().st_mtime_ns
        again = factory.publish(bundle).manifest.facts
        assert (again["published"], again["changed"]) == (first, False)
        assert (Path(published) / "current.json").stat().st_mtime_ns == before

    def test_a_held_model_publishes_nothing(self, factory, published):
        first = factory.publish(factory.export([1, 2, 3])).manifest.facts["published"]
        held = factory.publish(factory.export([1, 2, 3, 4]), decision="hold").manifest.facts
        assert (held["published"], held["changed"], held["decision"]) == (first, False, "hold")
        assert load(published).num_items == 3

    def test_a_held_first_model_leaves_nothing_to_read(self, factory, published):
        assert factory.publish(factory.export([1]), decision="hold").manifest.facts["published"] == ""
        assert versions(published) == []

    def test_keeps_the_newest_versions(self, factory, published):
        names = [factory.publish(factory.export(np.arange(num)), "publish.keep=2").manifest.facts["published"] for num in (1, 2, 3)]
        assert names == sorted(names)
        assert versions(published) == names[1:]
        assert names_in(published) == [*names[1:], "current.json"]

    def test_an_older_version_that_is_current_is_never_removed(self, factory, published):
        first = factory.publish(factory.export([1])).manifest.facts["published"]
        pointer = (Path(published) / "current.json").read_text()
        factory.publish(factory.export([1, 2]))
        (Path(published) / "current.json").write_text(pointer)  # somebody went back by hand
        factory.publish(factory.export([1, 2, 3]), "publish.keep=1", decision="hold")
        assert first in versions(published)
        assert load(published).num_items == 1

    def test_versions_sort_by_time_even_after_the_clock_went_back(self, factory, published):
        factory.publish(factory.export([1]))
        future = "29991231T235959999998Z-abc"
        storage.write_json(storage.join(published, future, "version.json"), {})
        assert next_version(published, "fedcba9876") == "29991231T235959999999Z-fedcba98"

    def test_a_workspace_that_moved_is_still_read(self, factory, published, tmp_path):
        factory.publish(factory.export([1, 2]))
        Path(factory.workspace).rename(tmp_path / "elsewhere")
        assert load(str(tmp_path / "elsewhere")).num_items == 2

    def test_a_pointer_that_is_none_is_named(self, factory, published):
        storage.write_json(storage.join(published, "current.json"), {"version": "x"})
        with pytest.raises(ClrflowError, match="not a pointer to a published version"):
            load(published)


class TestInterruption:
    def test_a_draft_of_a_killed_publisher_is_ignored_and_cleaned(self, factory, published):
        factory.publish(factory.export([1, 2]))
        draft = Path(published) / f"{DRAFT}20990101T000000000000Z-x"
        draft.mkdir()
        (draft / "index.faiss").write_bytes(b"half")
        assert load(published).num_items == 2
        factory.publish(factory.export([1, 2, 3]))
        assert not draft.exists()
        assert len(names_in(published)) == 3

    def test_kill_9_while_copying_leaves_the_old_version_and_the_next_publishing_works(self, factory, published, tmp_path):
        factory.publish(factory.export([1, 2]))
        # A part of endless size: the copy is surely still going when the kill comes.
        (tmp_path / "large").mkdir()
        with (tmp_path / "large" / "table.bin").open("wb") as file:
            file.truncate(20 << 30)
        bundle = factory.export([1, 2, 3])
        code = (
            "import sys; from clrflow.index.publish import publish_version\n"
            "publish_version(sys.argv[1], {'': sys.argv[2], 'model/large': sys.argv[3]}, fingerprint='f' * 8, train='t', champion='')"
        )
        arguments = [sys.executable, "-c", code, published, bundle.output("index"), str(tmp_path / "large")]
        publisher = subprocess.Popen(arguments)
        deadline = time.monotonic() + 60
        while not any(name.startswith(DRAFT) for name in names_in(published)):
            assert publisher.poll() is None, "the publisher ended before it could be killed"
            assert time.monotonic() < deadline, "no draft appeared within a minute"
            time.sleep(0.005)
        publisher.send_signal(signal.SIGKILL)
        publisher.wait()
        (tmp_path / "large" / "table.bin").unlink()
        assert len(versions(published)) == 1
        assert load(published).num_items == 2
        factory.publish(bundle)
        assert load(published).num_items == 3
        assert not any(name.startswith(DRAFT) for name in names_in(published))


class TestReaders:
    def test_see_the_old_or_the_new_version_while_others_come_and_go(self, factory, published):
        """Bundles of n items are published one after another, only one is kept; a reader must always get one whole."""
        bundles = [factory.export(np.arange(num)) for num in range(2, 8)]
        factory.publish(bundles[0], "publish.keep=1")
        seen: list[int] = []
        failures: list[Exception] = []
        done = threading.Event()

        def read() -> None:
            while not done.is_set():
                try:
                    bundle = load(published)
                    ids, _ = bundle.search(np.eye(8, dtype=np.float32)[:1], bundle.num_items)
                    assert sorted(ids[0]) == list(range(bundle.num_items))
                    seen.append(bundle.num_items)
                except Exception as error:
                    failures.append(error)
                    return

        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        for bundle in bundles[1:]:
            reached = len(seen)
            factory.publish(bundle, "publish.keep=1")
            waited = time.monotonic() + 30
            while len(seen) <= reached and not failures and time.monotonic() < waited:
                time.sleep(0.002)
        done.set()
        for reader in readers:
            reader.join()
        assert failures == []
        assert set(seen) >= {7}
        assert len(set(seen)) >= 3  # several versions were really read on the way


class TestObjectStores:
    def test_a_version_without_its_last_file_counts_for_nothing(self, factory):
        """Where nothing can be renamed, version.json is written last: fsspec's memory store stands for such a one."""
        bundle = factory.export([1, 2, 3])
        published = "memory://shop/published"
        storage.write_bytes(f"{published}/20990101T000000000000Z-half/index.faiss", b"half")
        assert versions(published) == []
        parts = {"": bundle.output("index")}
        made = [publish_version(published, parts, fingerprint="f" * 10, train="t", champion="").version for _ in range(3)]
        assert versions(published) == made
        assert load(published).num_items == 3
        assert load("memory://shop").uri == f"{published}/{made[-1]}"
        assert retire(published, keep=1) == made[:-1]
        assert versions(published) == made[-1:]
        storage.remove("memory://shop")
