"""Publishing where nothing can be renamed: a version is whole once its version.json is there, and the pointer never leads to less."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from clrflow import storage
from clrflow.errors import ClrflowError
from clrflow.index.bundle import load
from clrflow.index.publish import clean, next_version, publish_version, retire
from clrflow.index.published import published_folder, read_published, versions

PUBLISH = (
    "import sys; from clrflow.index.publish import publish_version\n"
    "publish_version(sys.argv[1], {'': sys.argv[2]}, fingerprint='f' * 8, train='t', champion='')"
)


@pytest.fixture
def workspace(factory, s3) -> str:
    factory.workspace = f"{s3}/work space"
    return factory.workspace


def test_the_step_publishes_keeps_and_retires_as_on_this_machine(factory, workspace):
    published = published_folder(workspace)
    names = [factory.publish(factory.export(range(num)), "publish.keep=2").manifest.facts["published"] for num in (1, 2, 3)]
    assert versions(published) == names[1:]
    assert load(workspace).num_items == 3
    assert storage.list_files(storage.join(published, names[0])) == []
    assert storage.list_files(storage.join(read_published(published).uri, "evaluation", "per_request"), ".parquet")


@pytest.mark.parametrize("before", ["items.parquet", "version.json", "current.json"])
def test_kill_9_before_a_file_leaves_the_old_version_and_the_next_publishing_works(factory, workspace, faulty, before):
    published = published_folder(workspace)
    factory.publish(factory.export([1, 2]))
    bundle = factory.export([1, 2, 3])
    came = faulty.hold(before)
    with subprocess.Popen([sys.executable, "-c", PUBLISH, published, bundle.output("index")]) as publisher:
        assert came.wait(60)
        publisher.send_signal(signal.SIGKILL)
    assert load(workspace).num_items == 2
    assert len(versions(published)) == (2 if before == "current.json" else 1)
    factory.publish(bundle)
    assert load(workspace).num_items == 3


def test_two_publishers_at_once_leave_two_whole_versions_and_a_pointer_to_one(factory, workspace):
    published = published_folder(workspace)
    factory.publish(factory.export([1]))
    bundles = [factory.export(range(num)) for num in (4, 5)]
    failures: list[Exception] = []
    start = threading.Barrier(2)

    def publish(bundle) -> None:
        start.wait()
        try:
            factory.publish(bundle, "publish.keep=2")
        except Exception as error:
            failures.append(error)

    publishers = [threading.Thread(target=publish, args=(bundle,)) for bundle in bundles]
    for publisher in publishers:
        publisher.start()
    for publisher in publishers:
        publisher.join()
    assert failures == []
    assert len(versions(published)) == 2
    assert read_published(published).version == versions(published)[-1]
    assert {load(storage.join(published, version)).num_items for version in versions(published)} == {4, 5}


def test_publishers_that_hold_nothing_still_leave_a_whole_version_current(factory, workspace):
    published = published_folder(workspace)
    bundles = [factory.export(range(num)) for num in (4, 5)]
    ended: list[str] = []
    start = threading.Barrier(2)

    def publish(bundle) -> None:
        start.wait()
        try:
            made = publish_version(published, {"": bundle.output("index")}, fingerprint=bundle.fingerprint, train="t", champion="")
            ended.append(made.version)
        except ClrflowError as error:
            ended.append(str(error))

    publishers = [threading.Thread(target=publish, args=(bundle,)) for bundle in bundles]
    for publisher in publishers:
        publisher.start()
    for publisher in publishers:
        publisher.join()
    assert len(ended) == 2
    assert read_published(published).version in ended
    assert all(told in versions(published) or "another publisher replaced version" in told for told in ended)
    assert load(workspace).num_items in (4, 5)


def test_what_a_killed_publisher_left_is_removed_after_a_day(factory, workspace):
    published = published_folder(workspace)
    old, young = "20200101T000000000000Z-old", next_version(published, "young")
    for version in (old, young):
        storage.write_bytes(storage.join(published, version, "index.faiss"), b"half")
    clean(published)
    assert storage.list_files(storage.join(published, old)) == []
    assert storage.list_files(storage.join(published, young)) != []
    assert retire(published, keep=1) == []
