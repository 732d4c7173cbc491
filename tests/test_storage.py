"""Places, on this machine and on S3: written complete-or-absent, listed, compared by content, held by one process at a time."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from clrflow import storage
from clrflow.errors import BadInput
from clrflow.storage import locks

ODD_NAMES = (
    "a b.parquet",
    "ärger/日本.parquet",
    "x#1.parquet",
    "50%.parquet",
    "a+b.parquet",
    "q?v=1.parquet",
    "a::b.parquet",
    "[1].parquet",
)


def names_below(uri: str, suffix: str = "") -> list[str]:
    files = storage.list_files(uri, suffix)
    assert all(file.startswith(f"{uri}/") for file in files)
    return [file.removeprefix(f"{uri}/") for file in files]


class TestNames:
    def test_join_takes_any_scheme_and_ignores_empty_parts(self) -> None:
        assert storage.join("s3://bucket/a/", "", "b", "/c/") == "s3://bucket/a/b/c"
        assert storage.join("/tmp/x", "y") == "/tmp/x/y"  # noqa: S108

    def test_the_parent_of_a_place_is_what_it_was_joined_to(self) -> None:
        assert storage.parent_of("s3://bucket/a/b/") == "s3://bucket/a"
        assert storage.parent_of("/a/b") == "/a"

    def test_a_relative_place_becomes_absolute_and_a_remote_one_stays(self) -> None:
        assert storage.absolute("a/b") == str(Path.cwd() / "a/b")
        assert storage.absolute("file:///a/b/") == "/a/b"
        assert storage.absolute("s3://bucket/a/") == "s3://bucket/a"

    def test_an_unknown_scheme_is_refused_by_name(self) -> None:
        with pytest.raises(BadInput, match="nosuch://x"):
            storage.exists("nosuch://x/y")

    def test_s3_without_a_bucket_is_refused(self) -> None:
        with pytest.raises(BadInput, match="names no bucket"):
            storage.exists("s3:///folder")

    def test_credentials_in_a_uri_are_refused_without_being_repeated(self) -> None:
        with pytest.raises(BadInput, match="credentials don't belong there") as error:
            storage.exists("s3://key:hush@bucket/folder")
        assert "hush" not in str(error.value)


class TestFiles:
    def test_what_is_written_is_read_and_what_is_removed_is_gone(self, place: str) -> None:
        file = storage.join(place, "folder/file.bin")
        assert not storage.exists(file)
        storage.write_bytes(file, b"first")
        storage.write_bytes(file, b"second")
        assert storage.read_bytes(file) == b"second"
        assert storage.exists(file)
        assert storage.exists(storage.join(place, "folder"))
        storage.remove(file)
        storage.remove(file)
        assert not storage.exists(file)

    def test_an_empty_file_is_a_file(self, place: str) -> None:
        storage.write_bytes(storage.join(place, "empty"), b"")
        assert storage.read_bytes(storage.join(place, "empty")) == b""
        assert names_below(place) == ["empty"]

    def test_an_absent_file_is_told_apart_by_its_name(self, place: str) -> None:
        storage.write_text(storage.join(place, "there"), "x")
        with pytest.raises(FileNotFoundError, match="absent"):
            storage.read_bytes(storage.join(place, "absent"))

    def test_a_file_is_created_once(self, place: str) -> None:
        file = storage.join(place, "once")
        assert storage.create_bytes(file, b"mine")
        assert not storage.create_bytes(file, b"yours")
        assert storage.read_bytes(file) == b"mine"

    def test_of_several_creators_at_once_one_wins(self, place: str) -> None:
        for turn in range(5):
            file, start = storage.join(place, f"once{turn}"), threading.Barrier(6)
            won: list[int] = []

            def create(number: int, file: str = file, start: threading.Barrier = start, won: list[int] = won) -> None:
                start.wait()
                if storage.create_bytes(file, str(number).encode()):
                    won.append(number)

            creators = [threading.Thread(target=create, args=(number,)) for number in range(6)]
            for creator in creators:
                creator.start()
            for creator in creators:
                creator.join()
            assert len(won) == 1
            assert storage.read_bytes(file) == str(won[0]).encode()

    def test_a_reader_sees_the_old_file_or_the_new_one_and_never_a_part(self, place: str) -> None:
        file = storage.join(place, "pointer.json")
        storage.write_bytes(file, b"a" * 200_000)
        seen: set[bytes] = set()
        stop = threading.Event()

        def read() -> None:
            while not stop.is_set():
                seen.add(storage.read_bytes(file))

        reader = threading.Thread(target=read)
        reader.start()
        for index in range(60):
            storage.write_bytes(file, (b"b" if index % 2 else b"a") * 200_000)
        stop.set()
        reader.join()
        assert seen
        assert seen <= {b"a" * 200_000, b"b" * 200_000}
        assert names_below(place) == ["pointer.json"]

    def test_a_failed_write_leaves_the_old_file_and_no_draft(self, place: str) -> None:
        file = storage.join(place, "value.json")
        storage.write_json(file, {"a": 1})
        with pytest.raises(ValueError, match="JSON"):
            storage.write_json(file, {"a": float("nan")})
        with pytest.raises(TypeError):
            storage.write_bytes(file, 5)  # type: ignore[arg-type]
        assert storage.read_json(file) == {"a": 1}
        assert names_below(place) == ["value.json"]

    def test_a_file_that_is_no_json_is_refused_by_name(self, place: str) -> None:
        storage.write_text(storage.join(place, "broken.json"), '{"a": ')
        with pytest.raises(BadInput, match=r"broken\.json: not JSON"):
            storage.read_json(storage.join(place, "broken.json"))

    def test_a_stream_is_a_whole_file_once_it_is_closed(self, place: str) -> None:
        with storage.open_write(storage.join(place, "folder/table")) as stream:
            for _ in range(3):
                stream.write(b"part")
        assert storage.read_bytes(storage.join(place, "folder/table")) == b"part" * 3

    def test_a_file_and_its_copy_are_equal(self, place: str) -> None:
        storage.write_bytes(storage.join(place, "a b+c"), b"x" * 100_000)
        storage.copy_file(storage.join(place, "a b+c"), storage.join(place, "copy/ö"))
        assert storage.read_bytes(storage.join(place, "copy/ö")) == b"x" * 100_000


class TestListings:
    def test_names_are_taken_as_they_are(self, place: str) -> None:
        for name in ODD_NAMES:
            storage.write_text(storage.join(place, name), name)
        assert names_below(place) == sorted(ODD_NAMES)
        for name in ODD_NAMES:
            assert storage.read_bytes(storage.join(place, name)).decode() == name
        storage.remove(storage.join(place, "[1].parquet"))  # a pattern elsewhere
        storage.remove(storage.join(place, "q?v=1.parquet"))
        assert names_below(place) == sorted(set(ODD_NAMES) - {"[1].parquet", "q?v=1.parquet"})

    def test_hidden_files_drafts_and_markers_are_not_data(self, place: str) -> None:
        for name in ("part.parquet", ".lock", "_SUCCESS", "_temporary/x.parquet", "sub/other.parquet", "notes.txt"):
            storage.write_text(storage.join(place, name), name)
        storage.write_bytes(storage.join(place, "sub_$folder$"), b"")
        assert names_below(place) == ["notes.txt", "part.parquet", "sub/other.parquet"]
        assert names_below(place, ".parquet") == ["part.parquet", "sub/other.parquet"]

    def test_a_file_lists_itself_and_nothing_lists_nothing(self, place: str) -> None:
        storage.write_text(storage.join(place, "a/part-0"), "x")
        storage.write_text(storage.join(place, "a/part-00"), "y")
        assert storage.list_files(storage.join(place, "a/part-0")) == [storage.join(place, "a/part-0")]
        assert storage.list_files(storage.join(place, "b")) == []

    def test_removing_a_folder_leaves_its_neighbours(self, place: str) -> None:
        for name in ("a/x", "a/b/y", "ab/z"):
            storage.write_text(storage.join(place, name), name)
        storage.remove(storage.join(place, "a"))
        assert names_below(place) == ["ab/z"]
        assert not storage.exists(storage.join(place, "a"))

    def test_what_another_process_writes_is_seen_at_once(self, place: str) -> None:
        storage.write_text(storage.join(place, "t/first"), "1")
        assert names_below(place) == ["t/first"]
        assert not storage.exists(storage.join(place, "t/second"))
        code = "import sys; from clrflow import storage; storage.write_text(sys.argv[1], '22'); storage.remove(sys.argv[2])"
        subprocess.run([sys.executable, "-c", code, storage.join(place, "t/second"), storage.join(place, "t/first")], check=True)
        assert names_below(place) == ["t/second"]
        assert storage.exists(storage.join(place, "t/second"))
        assert not storage.exists(storage.join(place, "t/first"))
        assert storage.size_bytes(place) == 2


class TestFingerprints:
    def test_equal_content_has_an_equal_fingerprint_wherever_it_lies(self, place: str) -> None:
        one, two = storage.join(place, "one"), storage.join(place, "two")
        for folder in (one, two):
            storage.write_text(storage.join(folder, "a/x.txt"), "same")
        assert storage.fingerprint(one) == storage.fingerprint(two)
        storage.write_text(storage.join(two, "a/x.txt"), "text")
        assert storage.fingerprint(one) != storage.fingerprint(two)

    def test_a_renamed_file_and_a_moved_boundary_change_the_fingerprint(self, place: str) -> None:
        contents = {"one": {"a": "12", "b": "3"}, "two": {"a": "1", "b": "23"}, "three": {"a": "12", "c": "3"}}
        for folder, files in contents.items():
            for name, text in files.items():
                storage.write_text(storage.join(place, folder, name), text)
        assert len({storage.fingerprint(storage.join(place, folder)) for folder in contents}) == 3

    def test_a_fingerprint_of_values_does_not_depend_on_the_order_of_keys(self) -> None:
        assert storage.fingerprint_of({"a": 1, "b": [2, 3]}) == storage.fingerprint_of({"b": [2, 3], "a": 1})
        assert storage.fingerprint_of({"a": 1}) != storage.fingerprint_of({"a": 2})

    def test_sizes_add_up(self, place: str) -> None:
        storage.write_bytes(storage.join(place, "a"), b"12")
        storage.write_bytes(storage.join(place, "b/__c"), b"345")  # what checkpoints are made of
        assert storage.size_bytes(place) == 5
        assert storage.size_bytes(storage.join(place, "a")) == 2


HOLDER = (
    "import sys, time\n"
    "from clrflow import storage\n"
    "from clrflow.storage import locks\n"
    "locks.BEAT_S = 0.5\n"
    "with storage.exclusive(sys.argv[1]):\n"
    "    print('held', flush=True)\n"
    "    time.sleep(60)\n"
)


class TestHolding:
    @pytest.fixture(autouse=True)
    def short_times(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A lock on S3 is stale after 3 s instead of a minute; its times are whole seconds there."""
        for name, value in (("BEAT_S", 0.5), ("STALE_S", 3.0), ("POLL_S", 0.1)):
            monkeypatch.setattr(locks, name, value)

    def test_a_lock_is_held_against_another_process_and_falls_when_its_holder_is_killed(self, place: str) -> None:
        with subprocess.Popen([sys.executable, "-c", HOLDER, place], stdout=subprocess.PIPE, text=True) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            waited: list[bool] = []

            def waiting() -> None:
                with storage.unless_held(place) as free:
                    waited.extend((free, holder.poll() is None))
                holder.kill()  # SIGKILL: no handler runs

            with storage.exclusive(place, waiting):
                assert waited == [False, True]
                holder.wait(timeout=10)

    def test_a_lock_stays_as_long_as_it_is_held(self, place: str) -> None:
        with storage.exclusive(place):
            deadline = time.monotonic() + 5.0
            while time.monotonic() < deadline:
                with storage.unless_held(place) as free:
                    assert not free
                time.sleep(0.5)
        with storage.unless_held(place) as free:
            assert free

    def test_what_one_holder_adds_to_the_next_one_finds(self, place: str) -> None:
        counter = storage.join(place, "count")
        storage.write_text(counter, "0")

        def add() -> None:
            for _ in range(5):
                with storage.exclusive(place):
                    storage.write_text(counter, str(int(storage.read_bytes(counter)) + 1))

        adders = [threading.Thread(target=add) for _ in range(3)]
        for adder in adders:
            adder.start()
        for adder in adders:
            adder.join()
        assert storage.read_bytes(counter) == b"15"
        assert names_below(place) == ["count"]


def test_a_place_below_a_file_can_not_be_written_and_says_so(tmp_path: Path) -> None:
    storage.write_text(str(tmp_path / "file"), "x")
    below = str(tmp_path / "file/folder")
    attempts: tuple[Callable[[], object], ...] = (
        lambda: storage.write_text(below, "y"),
        lambda: storage.make_folder(below),
        lambda: storage.exclusive(below).__enter__(),
        lambda: storage.open_write(f"{below}/z").__enter__(),
        lambda: storage.write_text("/proc/nothing/x", "y"),
    )
    for attempt in attempts:
        with pytest.raises(BadInput, match="can't be written"):
            attempt()


def test_a_folder_read_as_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="can't be read"):
        storage.read_bytes(str(tmp_path))
