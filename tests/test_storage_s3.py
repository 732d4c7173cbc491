"""What only a store on a network does: it pages, stalls, breaks off, refuses, and its credentials run out."""

from __future__ import annotations

import sys
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from botocore.credentials import RefreshableCredentials

from clrflow import storage
from clrflow.data.tables import TableWriter, iter_batches, read_table, register, table_files, write_table
from clrflow.errors import BadInput, ClrflowError
from clrflow.storage.s3 import ATTEMPTS, ObjectStore
from tests.object_store import BUCKET, KEYS, FaultyProxy, ObjectStoreServer, environment, secret_of, use

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def numbered(count: int) -> pa.Table:
    ids = pa.array(range(count), pa.int64())
    return pa.table({"id": ids, "name": pc.cast(ids, pa.string())}, schema=SCHEMA)


def without_secrets(error: BaseException | None) -> bool:
    """No secret in an error or in what it came from, as a traceback would print them."""
    while error is not None:
        if any(secret_of(name) in f"{error} {error!r}" for name in KEYS):
            return False
        error = error.__cause__
    return True


class TestListings:
    def test_more_files_than_a_page_holds(self, s3: str, s3_server: ObjectStoreServer, faulty: FaultyProxy) -> None:
        _, path = storage.filesystem(f"{s3}/many")
        ObjectStore(endpoint_url=s3_server.endpoint).pipe({f"{path}/{number:04}": b"x" for number in range(1203)})  # a page has 1,000
        faulty.requests.clear()
        assert len(storage.list_files(f"{s3}/many")) == 1203
        assert storage.size_bytes(f"{s3}/many") == 1203
        assert faulty.count("GET") == 4  # two pages each, and no request a file
        assert faulty.count("HEAD") == 0
        storage.remove(f"{s3}/many")
        assert storage.list_files(f"{s3}/many") == []

    def test_an_object_that_stands_for_a_folder_is_no_file(self, s3: str) -> None:
        storage.write_text(f"{s3}/t/part.parquet", "x")
        fs, path = storage.filesystem(f"{s3}/t")
        fs.call_s3("put_object", Bucket=BUCKET, Key=path.partition("/")[2] + "/", Body=b"")
        fs.call_s3("put_object", Bucket=BUCKET, Key=path.partition("/")[2] + "/sub/", Body=b"")
        assert storage.list_files(f"{s3}/t") == [f"{s3}/t/part.parquet"]
        assert storage.list_files(f"{s3}/t/sub") == []

    def test_a_fingerprint_downloads_nothing(self, s3: str, faulty: FaultyProxy) -> None:
        for name in ("a", "b"):
            storage.write_bytes(f"{s3}/t/{name}", b"x" * 100_000)
        faulty.requests.clear()
        storage.fingerprint(f"{s3}/t")
        assert [method for method, path, _ in faulty.requests] == ["GET"]
        assert "list-type=2" in faulty.requests[0][1]

    def test_making_a_folder_asks_nothing_of_the_store(self, s3: str, faulty: FaultyProxy) -> None:
        storage.make_folder("s3://no-such-bucket/folder")
        assert faulty.requests == []


class TestTables:
    def test_a_table_is_written_read_and_queried_as_on_this_machine(self, s3: str) -> None:
        output = write_table(f"{s3}/it's ünder/t", numbered(10), SCHEMA, rows_per_group=2, rows_per_file=4)
        assert [storage.name_of(file) for file in table_files(output.uri)] == [
            "part-00000.parquet",
            "part-00001.parquet",
            "part-00002.parquet",
        ]
        assert read_table(output.uri).equals(numbered(10))
        assert [len(batch) for batch in iter_batches(output.uri, num_rows=3)] == [3, 1, 3, 1, 2]
        con = duckdb.connect()
        register(con, "numbers", output.uri)
        assert con.execute("SELECT sum(id), count(*) FROM numbers").fetchall() == [(45, 10)]
        again = write_table(
            f"{s3}/again", iter([numbered(10).slice(0, 3), numbered(10).slice(3)]), SCHEMA, rows_per_group=2, rows_per_file=4
        )
        assert again.fingerprint == output.fingerprint
        assert again.num_bytes == output.num_bytes

    def test_a_table_that_was_not_finished_leaves_no_file(self, s3: str) -> None:
        writer = TableWriter(f"{s3}/t", SCHEMA, rows_per_group=2)
        writer.write(numbered(4))
        writer.abandon()
        assert storage.list_files(f"{s3}/t") == []

    def test_a_file_of_many_parts_appears_whole_or_not_at_all(self, s3: str, faulty: FaultyProxy) -> None:
        block = b"x" * (5 << 20)

        def write_and_fail() -> None:
            with storage.open_write(f"{s3}/large") as stream:
                for _ in range(8):  # 40 MB, a part has 32
                    stream.write(block)
                raise KeyError

        with pytest.raises(KeyError):
            write_and_fail()
        assert faulty.count("PUT", "uploadId") >= 1
        assert not storage.exists(f"{s3}/large")
        fs, _ = storage.filesystem(s3)
        assert fs.list_multipart_uploads(BUCKET) == []
        with storage.open_write(f"{s3}/large") as stream:
            for _ in range(8):
                stream.write(block)
            assert not storage.exists(f"{s3}/large")
        assert storage.read_bytes(f"{s3}/large") == block * 8


class TestFailures:
    def test_a_busy_store_is_asked_again(self, s3: str, faulty: FaultyProxy) -> None:
        storage.write_text(f"{s3}/t/x", "text")
        faulty.fail(2, part="/t/x")
        assert storage.read_bytes(f"{s3}/t/x") == b"text"
        faulty.fail(1, part="list-type")
        assert storage.list_files(f"{s3}/t") == [f"{s3}/t/x"]
        faulty.fail(1, method="PUT")
        storage.write_text(f"{s3}/t/y", "more")
        assert storage.read_bytes(f"{s3}/t/y") == b"more"

    def test_a_read_that_breaks_off_is_read_again(self, s3: str, faulty: FaultyProxy) -> None:
        data = bytes(range(256)) * 1000
        storage.write_bytes(f"{s3}/x", data)
        faulty.cut(2, after_bytes=1000, part="/x")
        assert storage.read_bytes(f"{s3}/x") == data
        faulty.cut(1, after_bytes=100, part="list-type")
        assert storage.list_files(s3) == [f"{s3}/x"]

    def test_a_table_whose_blocks_break_off_is_read_whole(self, s3: str, faulty: FaultyProxy) -> None:
        write_table(f"{s3}/t", numbered(200_000), SCHEMA)
        faulty.cut(3, after_bytes=5000, part=".parquet")
        assert pa.Table.from_batches(iter_batches(f"{s3}/t")).equals(numbered(200_000))
        faulty.cut(2, after_bytes=0, part=".parquet")
        assert read_table(f"{s3}/t").equals(numbered(200_000))

    def test_a_large_file_is_read_in_ranges_of_one_version(self, s3: str, faulty: FaultyProxy) -> None:
        data = bytes(range(256)) * (40 << 12)  # 40 MB: two ranges
        storage.write_bytes(f"{s3}/x", data)
        faulty.cut(2, after_bytes=1 << 20, part="/x")
        assert storage.read_bytes(f"{s3}/x") == data

    def test_a_store_that_stays_busy_is_an_error_that_names_the_place(
        self, s3: str, faulty: FaultyProxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        use({"AWS_MAX_ATTEMPTS": "2"}, monkeypatch.setenv)
        faulty.fail(100, part="/busy", code="ServiceUnavailable")
        with pytest.raises(
            ClrflowError, match=rf"{s3}/busy: can't be read: the store answers ServiceUnavailable \(told to fail\)"
        ) as error:
            storage.read_bytes(f"{s3}/busy")
        assert not isinstance(error.value, BadInput)
        assert faulty.count("GET", "/busy") == 2

    def test_a_read_that_always_breaks_off_is_given_up(self, s3: str, faulty: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> None:
        storage.write_bytes(f"{s3}/x", b"x" * 10_000)
        faulty.requests.clear()
        faulty.cut(100, after_bytes=10, part="/x")
        with pytest.raises(ClrflowError, match=f"/x: can't be read: the connection .* broke off each time, {ATTEMPTS} time"):
            storage.read_bytes(f"{s3}/x")
        assert faulty.count("GET", "/x") == ATTEMPTS

    def test_a_lock_whose_answer_got_lost_is_still_ours(self, s3: str, faulty: FaultyProxy) -> None:
        faulty.lose_answer(1, part=".lock")
        with storage.exclusive(f"{s3}/t"), storage.unless_held(f"{s3}/t") as free:
            assert not free
        with storage.unless_held(f"{s3}/t") as free:
            assert free

    def test_an_endpoint_that_is_not_there_is_named(self, s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
        use({"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_MAX_ATTEMPTS": "1"}, monkeypatch.setenv)
        with pytest.raises(
            ClrflowError, match=r"can't be read: the store at http://127\.0\.0\.1:9 can't be reached .* Check AWS_ENDPOINT_URL"
        ):
            storage.read_bytes(f"{s3}/x")

    def test_a_file_that_is_replaced_while_it_is_read_is_never_a_mixture(self, s3: str) -> None:
        storage.write_bytes(f"{s3}/x", b"a" * (5 << 20))
        fs, path = storage.filesystem(f"{s3}/x")
        with fs.open(path, "rb") as stream:
            assert stream.read(10) == b"a" * 10
            storage.write_bytes(f"{s3}/x", b"b" * (5 << 20))
            stream.seek(4 << 20)
            with pytest.raises(ClrflowError, match="another process replaced it"):
                stream.read(10)


class TestRights:
    def test_a_read_only_place_is_read_and_a_write_says_what_is_missing(
        self, s3: str, s3_server: ObjectStoreServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        storage.write_text(f"{s3}/x", "text")
        use(environment("reader", s3_server.endpoint), monkeypatch.setenv)
        assert storage.read_bytes(f"{s3}/x") == b"text"
        assert storage.list_files(s3) == [f"{s3}/x"]
        for doing, right, attempt in (
            ("written", "s3:PutObject", lambda: storage.write_text(f"{s3}/x", "other")),
            ("written", "s3:PutObject", lambda: storage.create_bytes(f"{s3}/y", b"other")),
            ("removed", "s3:DeleteObject", lambda: write_table(f"{s3}/y", numbered(3), SCHEMA)),  # what lies there goes first
            ("removed", "s3:DeleteObject", lambda: storage.remove(f"{s3}/x")),
        ):
            with pytest.raises(
                BadInput, match=rf"{s3}/\S+: can't be {doing}: access denied.* Grant {right} .*the environment's variables"
            ) as error:
                attempt()
            assert without_secrets(error.value)
        use(environment("writer", s3_server.endpoint), monkeypatch.setenv)
        assert storage.read_bytes(f"{s3}/x") == b"text"

    def test_a_bucket_that_is_not_there_is_named(self, s3: str) -> None:
        for attempt in (
            lambda: storage.read_bytes("s3://no-such-bucket/x"),
            lambda: storage.exists("s3://no-such-bucket/x"),
            lambda: storage.list_files("s3://no-such-bucket/x"),
            lambda: storage.write_text("s3://no-such-bucket/x", "y"),
        ):
            with pytest.raises(BadInput, match=r"s3://no-such-bucket/x: can't be .*: there is no bucket 'no-such-bucket' at http"):
                attempt()

    def test_no_credentials_at_all_says_where_they_are_looked_for(self, s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        use({}, monkeypatch.setenv)
        with pytest.raises(BadInput, match=r"/x: can't be read: no credentials were found\. Set AWS_PROFILE"):
            storage.read_bytes(f"{s3}/x")

    def test_a_wrong_secret_is_told_from_a_missing_right(self, s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
        use({"AWS_SECRET_ACCESS_KEY": secret_of("reader")}, monkeypatch.setenv)
        with pytest.raises(BadInput, match=r"refuses the credentials \(from the environment's variables; SignatureDoesNotMatch\)") as error:
            storage.read_bytes(f"{s3}/x")
        assert without_secrets(error.value)

    def test_a_profile_that_is_not_there_is_named(self, s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
        use({"AWS_PROFILE": "nobody"}, monkeypatch.setenv)
        with pytest.raises(BadInput, match=r"profile \(nobody\) could not be found"):
            storage.read_bytes(f"{s3}/x")


class TestCredentialsThatRunOut:
    def credential_process(self, folder: Path, monkeypatch: pytest.MonkeyPatch, endpoint: str) -> Path:
        """A profile whose first credentials are good for an hour and whose next ones belong to another key; returns the log of calls."""
        program = folder / "fetch.py"
        program.write_text(
            "import datetime, json, pathlib, sys\n"
            f"log = pathlib.Path({str(folder / 'calls')!r})\n"
            "with log.open('a') as file: file.write('x')\n"
            f"first = len(log.read_text()) == 1\n"
            "lives = 3600 if first else 36_000\n"
            "end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=lives)\n"
            f"key, secret = {(KEYS['writer'], secret_of('writer'))!r} if first else {(KEYS['second'], secret_of('second'))!r}\n"
            "print(json.dumps({'Version': 1, 'AccessKeyId': key, 'SecretAccessKey': secret, 'Expiration': end.isoformat()}))\n"
        )
        config = folder / "config"
        config.write_text(f"[profile runs-out]\ncredential_process = {sys.executable} {program}\n")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        use({"AWS_CONFIG_FILE": str(config), "AWS_PROFILE": "runs-out", "AWS_ENDPOINT_URL": endpoint}, monkeypatch.setenv)
        return folder / "calls"

    def test_they_are_fetched_again_in_the_middle_of_a_read(
        self, s3: str, faulty: FaultyProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_table(f"{s3}/t", numbered(1000), SCHEMA, rows_per_group=100, rows_per_file=100)
        calls = self.credential_process(tmp_path, monkeypatch, faulty.endpoint)
        faulty.requests.clear()
        rows = []
        for number, batch in enumerate(iter_batches(f"{s3}/t", num_rows=100)):
            rows += batch["id"].to_pylist()
            if number == 4:  # half of it is read: the first key comes to its end
                assert calls.read_text() == "x"
                # Seconds before their end from which botocore fetches new ones.
                for name in ("_advisory_refresh_timeout", "_mandatory_refresh_timeout"):
                    monkeypatch.setattr(RefreshableCredentials, name, 7200)
                faulty.refuse(KEYS["writer"])
        assert rows == list(range(1000))
        assert calls.read_text() == "xx"
        used = [key for _, _, key in faulty.requests]
        assert set(used) == {KEYS["writer"], KEYS["second"]}
        assert used == sorted(used, reverse=True)  # "writer-key", then "second-key" and never back

    def test_a_source_that_does_not_say_when_they_expire_is_read_again_once_they_have(
        self, s3: str, faulty: FaultyProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        storage.write_text(f"{s3}/x", "text")
        file = tmp_path / "credentials"

        def write(identity: str) -> None:
            file.write_text(f"[default]\naws_access_key_id = {KEYS[identity]}\naws_secret_access_key = {secret_of(identity)}\n")

        write("writer")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        use({"AWS_SHARED_CREDENTIALS_FILE": str(file)}, monkeypatch.setenv)
        assert storage.read_bytes(f"{s3}/x") == b"text"
        faulty.refuse(KEYS["writer"])
        write("second")  # as an agent beside the job does
        assert storage.read_bytes(f"{s3}/x") == b"text"
        assert storage.exists(f"{s3}/x")

    def test_those_that_stay_expired_say_so(self, s3: str, faulty: FaultyProxy) -> None:
        faulty.refuse(KEYS["writer"])
        with pytest.raises(BadInput, match=r"/x: can't be read: the credentials \(from the environment's variables\) have expired"):
            storage.read_bytes(f"{s3}/x")

    def test_a_program_that_fails_to_fetch_them_is_named_and_not_quoted(
        self, s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        program = tmp_path / "fetch.py"
        program.write_text(f"import sys; sys.exit('token was {secret_of('writer')}')")
        config = tmp_path / "config"
        config.write_text(f"[profile broken]\ncredential_process = {sys.executable} {program}\n")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        use({"AWS_CONFIG_FILE": str(config), "AWS_PROFILE": "broken"}, monkeypatch.setenv)
        with pytest.raises(BadInput, match="no credentials could be fetched from the profile's credential_process") as error:
            storage.read_bytes(f"{s3}/x")
        assert without_secrets(error.value)
