"""Places: written complete-or-absent, fingerprinted by content, held by one process at a time."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from clrflow import storage
from clrflow.errors import BadInput


def test_join_takes_any_scheme_and_ignores_empty_parts() -> None:
    assert storage.join("s3://bucket/a/", "", "b", "/c/") == "s3://bucket/a/b/c"
    assert storage.join("/tmp/x", "y") == "/tmp/x/y"  # noqa: S108


def test_a_relative_place_becomes_absolute_and_a_remote_one_stays() -> None:
    assert storage.absolute("a/b") == str(Path.cwd() / "a/b")
    assert storage.absolute("file:///a/b/") == "/a/b"
    assert storage.absolute("s3://bucket/a/") == "s3://bucket/a"


def test_an_unknown_scheme_is_refused_by_name() -> None:
    with pytest.raises(BadInput, match="nosuch://x"):
        storage.exists("nosuch://x/y")


def test_equal_content_has_an_equal_fingerprint_wherever_it_lies(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        storage.write_text(str(tmp_path / folder / "a/x.txt"), "same")
    assert storage.fingerprint(str(tmp_path / "one")) == storage.fingerprint(str(tmp_path / "two"))
    storage.write_text(str(tmp_path / "two/a/x.txt"), "other")
    assert storage.fingerprint(str(tmp_path / "one")) != storage.fingerprint(str(tmp_path / "two"))


def test_a_renamed_file_and_a_moved_boundary_change_the_fingerprint(tmp_path: Path) -> None:
    contents = {"one": {"a": "12", "b": "3"}, "two": {"a": "1", "b": "23"}, "three": {"a": "12", "c": "3"}}
    for folder, files in contents.items():
        for name, text in files.items():
            storage.write_text(str(tmp_path / folder / name), text)
    assert len({storage.fingerprint(str(tmp_path / folder)) for folder in contents}) == 3


def test_a_fingerprint_of_values_does_not_depend_on_the_order_of_keys() -> None:
    assert storage.fingerprint_of({"a": 1, "b": [2, 3]}) == storage.fingerprint_of({"b": [2, 3], "a": 1})
    assert storage.fingerprint_of({"a": 1}) != storage.fingerprint_of({"a": 2})


def test_hidden_and_draft_files_are_not_data(tmp_path: Path) -> None:
    for name in ("part.parquet", ".lock", "_temporary/x.parquet", "sub/other.parquet", "notes.txt"):
        storage.write_text(str(tmp_path / name), name)
    found = storage.list_files(str(tmp_path), suffix=".parquet")
    assert [Path(file).relative_to(tmp_path).as_posix() for file in found] == ["part.parquet", "sub/other.parquet"]


def test_a_reader_sees_the_old_file_or_the_new_one_and_never_a_part(tmp_path: Path) -> None:
    place = str(tmp_path / "pointer.json")
    storage.write_bytes(place, b"a" * 200_000)
    seen: set[bytes] = set()
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            seen.add(storage.read_bytes(place))

    reader = threading.Thread(target=read)
    reader.start()
    for index in range(60):
        storage.write_bytes(place, (b"b" if index % 2 else b"a") * 200_000)
    stop.set()
    reader.join()
    assert seen <= {b"a" * 200_000, b"b" * 200_000}
    assert [file.name for file in tmp_path.iterdir()] == ["pointer.json"]


def test_a_failed_write_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    place = str(tmp_path / "value.json")
    storage.write_json(place, {"a": 1})
    with pytest.raises(ValueError, match="JSON"):
        storage.write_json(place, {"a": float("nan")})
    with pytest.raises(TypeError):
        storage.write_bytes(place, "text")  # type: ignore[arg-type]
    assert storage.read_json(place) == {"a": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["value.json"]


def test_a_file_that_is_no_json_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text('{"a": ')
    with pytest.raises(BadInput, match=r"broken\.json: not JSON"):
        storage.read_json(str(tmp_path / "broken.json"))


def test_a_lock_is_held_against_another_process_and_falls_when_its_holder_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        "from clrflow import storage\n"
        "with storage.exclusive(sys.argv[1]):\n"
        "    print('held', flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        waited: list[bool] = []

        def waiting() -> None:
            waited.append(holder.poll() is None)
            holder.kill()  # SIGKILL: no handler runs, the kernel lets go

        with storage.exclusive(str(tmp_path), waiting):
            assert waited == [True]
            holder.wait(timeout=10)


def test_a_place_below_a_file_can_not_be_written_and_says_so(tmp_path: Path) -> None:
    storage.write_text(str(tmp_path / "file"), "x")
    below = str(tmp_path / "file/folder")
    for attempt in (
        lambda: storage.write_text(below, "y"),
        lambda: storage.make_folder(below),
        lambda: storage.exclusive(below).__enter__(),
        lambda: storage.write_text("/proc/nothing/x", "y"),
    ):
        with pytest.raises(BadInput, match="can't be written"):
            attempt()


def test_a_folder_read_as_a_file_is_refused_but_an_absent_file_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="can't be read"):
        storage.read_bytes(str(tmp_path))
    with pytest.raises(FileNotFoundError):
        storage.read_bytes(str(tmp_path / "absent"))
