"""Another version is served once it is whole and fits, without a request that fails; a broken one changes nothing."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from clrflow import storage
from clrflow.index.bundle import sha256
from clrflow.serving.query import Retriever
from tests.serving.conftest import Server, publish, running

ASKED = {"user": 3, "conditions": ["interest:7"], "k": 5}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory, retriever: Retriever) -> Path:
    folder = tmp_path_factory.mktemp("workspace")
    publish(folder, retriever.bundle.uri, "a")
    return folder


@pytest.fixture(scope="module")
def server(workspace: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Looks at what is published five times a second."""
    with running(tmp_path_factory.mktemp("server") / "log", str(workspace), "--poll-s", "0.2") as found:
        yield found


def served(server: Server) -> str:
    return str(server.request("GET", "/readyz")[1]["version"])


def copy_of(bundle: str, target: Path) -> Path:
    shutil.copytree(bundle, target)
    return target


def with_another_tokenizer(bundle: str, target: Path) -> Path:
    """A bundle whose model says that it was trained with other codes, hashes and all in order."""
    copy = copy_of(bundle, target)
    note = json.loads((copy / "model" / "model.json").read_text())
    (copy / "model" / "model.json").write_text(json.dumps({**note, "tokenizer_hash": "other"}))
    info = json.loads((copy / "index.json").read_text())
    info["files"]["model/model.json"] = sha256(str(copy / "model" / "model.json"))
    (copy / "index.json").write_text(json.dumps(info))
    return copy


def test_a_new_version_is_swapped_in_without_a_request_that_fails(server: Server, workspace: Path, retriever: Retriever) -> None:
    first, seen, done = served(server), [], threading.Event()

    def ask() -> None:
        while not done.is_set():
            status, _, headers = server.predict(ASKED)
            seen.append((status, headers.get("x-clrflow-index-version")))

    callers = [threading.Thread(target=ask) for _ in range(4)]
    for caller in callers:
        caller.start()
    server.wait_for(lambda: len(seen) > 8, "requests before the swap")
    second = publish(workspace, retriever.bundle.uri, "b")
    server.wait_for(lambda: seen[-1] == (200, second), "the new version answers")
    done.set()
    for caller in callers:
        caller.join()
    assert set(seen) == {(200, first), (200, second)}
    assert server.metric(f'clrflow_index_info{{version="{second}"}}') == 1
    assert server.metric(f'clrflow_index_info{{version="{first}"}}') == 0
    assert f"serve: {second} is served" in server.log()


@pytest.mark.parametrize("broken", ["damaged", "tokenizer", "pointer"])
def test_a_version_that_can_not_be_loaded_leaves_the_old_one_and_is_told(
    server: Server, workspace: Path, retriever: Retriever, tmp_path: Path, broken: str
) -> None:
    before, failures = served(server), server.metric("clrflow_index_load_failures_total")
    pointer = workspace / "published" / "current.json"
    good = pointer.read_text()
    if broken == "damaged":
        copy = copy_of(retriever.bundle.uri, tmp_path / "bundle")
        (copy / "index.faiss").write_bytes((copy / "index.faiss").read_bytes()[:-1] + b"!")
        named, why = publish(workspace, str(copy), "c"), "index.faiss is damaged"
    elif broken == "tokenizer":
        named, why = (
            publish(workspace, str(with_another_tokenizer(retriever.bundle.uri, tmp_path / "bundle")), "d"),
            "trained with tokenizer other",
        )
    else:
        storage.write_json(str(pointer), {"version": "x"})
        named, why = "the pointer", "not a pointer to a published version"
    server.wait_for(lambda: server.metric("clrflow_index_load_failures_total") > failures, "the failure is counted")
    assert served(server) == before
    assert server.predict(ASKED)[0] == 200
    assert server.metric("clrflow_index_is_current") == 0
    told = [line for line in server.log().splitlines() if named in line and "can't be loaded" in line]
    assert why in told[0]
    assert f"{before} is still served" in told[0]

    # Somebody goes back by hand, and then publishes what works.
    storage.write_bytes(str(pointer), good.encode())
    server.wait_for(lambda: server.metric("clrflow_index_is_current") == 1, "what is published is served")
    assert served(server) == before
    after = publish(workspace, retriever.bundle.uri, "e")
    server.wait_for(lambda: served(server) == after, "the next whole version is served")


def test_the_version_that_is_served_may_be_removed_from_its_folder(server: Server, workspace: Path) -> None:
    before = server.predict(ASKED)
    hidden = workspace / "hidden"
    (workspace / "published").rename(hidden)
    try:
        server.wait_for(lambda: server.metric("clrflow_index_is_current") == 0, "the loss is seen")
        assert server.predict(ASKED)[:2] == before[:2]
    finally:
        hidden.rename(workspace / "published")
    server.wait_for(lambda: server.metric("clrflow_index_is_current") == 1, "what is published is served")
