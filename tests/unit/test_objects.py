"""Files at an address: listed and copied by fsspec's memory and local file systems and a real S3 server, and cached within a bound."""

import hashlib
import json
import multiprocessing
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import fsspec
import limits
import pytest

from snaketrain import CachedFiles
from snaketrain.config.schema import Data, Source
from snaketrain.data import locations
from snaketrain.data.fetching import describe, fetch
from snaketrain.orchestration.preflight import files

SERVER = """
from threading import Event
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
Event().wait()
"""
NAMES = ("a.csv", "b.csv", "deep/c.csv", ".hidden/x.csv")


@pytest.fixture
def memory():
    """The address of a folder in fsspec's memory."""
    store = fsspec.filesystem("memory")
    for name in NAMES:
        store.pipe_file(f"/bucket/raw/{name}", f"text\n{name}\n".encode())
    store.pipe_file("/bucket/raw-2/d.csv", b"")
    yield "memory://bucket/raw"
    store.rm("/bucket", recursive=True)


@pytest.fixture
def local(tmp_path):
    for name in NAMES:
        (tmp_path / "raw" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "raw" / name).write_text(f"text\n{name}\n")
    (tmp_path / "raw-2").mkdir()
    return f"file://{tmp_path}/raw"


@pytest.fixture(scope="module")
def server():
    """A server of moto on loopback."""
    process = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    port = int(process.stdout.readline())
    yield f"http://127.0.0.1:{port}"
    process.kill()
    process.wait()


@pytest.fixture
def s3(server, monkeypatch, tmp_path):
    given = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "a-secret-of-mine", "AWS_ENDPOINT_URL": server}
    for name, value in (given | {"AWS_DEFAULT_REGION": "us-east-1"}).items():
        monkeypatch.setenv(name, value)
    store, bucket = fsspec.filesystem("s3"), f"bucket-{tmp_path.name.replace('_', '-')}"[:60].lower()
    store.mkdir(bucket)
    for name in NAMES:
        store.pipe_file(f"{bucket}/raw/{name}", f"text\n{name}\n".encode())
    store.pipe_file(f"{bucket}/raw-2/d.csv", b"x")
    return f"s3://{bucket}/raw"


@pytest.fixture(params=["memory", "local", "s3"])
def address(request):
    return request.getfixturevalue(request.param)


LISTED = {
    "/a.csv": ["a.csv"],
    "": ["a.csv", "b.csv", "deep/c.csv"],
    "/": ["a.csv", "b.csv", "deep/c.csv"],
    "/*.csv": ["a.csv", "b.csv"],
    "/**/*.csv": ["a.csv", "b.csv", "deep/c.csv"],
    "/deep/*.csv": ["c.csv"],
}


def test_a_file_a_folder_and_globs_are_copied(address, tmp_path):
    target = tmp_path / "out/files"
    for path, names in LISTED.items():
        assert [*fetch(Source(path=address + path), target).files] == names, path
        for name in names:
            assert not (target / name).is_symlink() and (target / name).read_text().startswith("text\n")
        assert [path.name for path in target.parent.iterdir()] == ["files"], "nothing is left of the download"


def test_digests_are_verified_and_missing_files_reported(address, tmp_path):
    right = hashlib.sha256(b"text\na.csv\n").hexdigest()
    assert [*fetch(Source(path=f"{address}/a.csv", sha256={"a.csv": right}), tmp_path / "files").files] == ["a.csv"]
    with pytest.raises(SystemExit, match="not the expected file"):
        fetch(Source(path=f"{address}/b.csv", sha256={"b.csv": right}), tmp_path / "files")
    with pytest.raises(ValueError, match=r"address '.*/\*.jsonl': no file there. Correct the address"):
        fetch(Source(path=f"{address}/*.jsonl"), tmp_path / "files")
    assert os.listdir(tmp_path / "files") == ["a.csv"]


def test_an_interrupted_download_resumes(memory, tmp_path, monkeypatch):
    copied = []

    def failing(files, wanted, folder):
        if wanted.name == "deep/c.csv" and len(copied) < 3:
            raise locations.Unreachable("deep/c.csv: TimeoutError: token=hf_abcdefghijklmnop")
        copied.append(wanted.name)
        return download(files, wanted, folder)

    download = locations.download
    monkeypatch.setattr(locations, "download", failing)
    monkeypatch.setattr(locations, "AT_ONCE", 1)
    with pytest.raises(SystemExit, match=r"cannot be downloaded: deep/c.csv: TimeoutError: token=\*\*\*\nCheck the address") as error:
        fetch(Source(path=memory), tmp_path / "files")
    assert "hf_" not in str(error.value)
    read = fsspec.filesystem("memory").get_file
    monkeypatch.setattr(type(fsspec.filesystem("memory")), "get_file", lambda *args, **_: copied.append("read") or read(*args[1:]))
    copied += ["", ""]
    assert len(fetch(Source(path=memory), tmp_path / "files").files) == 3
    assert copied.count("read") == 1, "only the file that was missing is read again"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("memroy://bucket/a.csv", "`memroy://` is unknown. Did you mean 'memory'?"),
        ("oss://bucket/a.csv", "`oss://` needs the Python package ossfs, which is not installed"),
    ],
)
def test_a_scheme_is_checked_before_any_job(path, words):
    (problem,) = files("data.train", Source(path=path))
    assert words in problem
    assert not list(files("data.train", Source(path="file:///nowhere/a.csv"))), "what is there shows when it is fetched"


def test_an_address_stands_alone_and_hides_its_password():
    with pytest.raises(ValueError, match="`path` is an address in an object store, but `package` names another place"):
        Data.model_validate({"train": {"path": "s3://bucket/a.csv", "package": "numpy"}, "tokenizer": {"path": "x"}})
    assert describe(Source(path="ftp://me:my-password@host/a.csv")) == "address 'ftp://***@host/a.csv'"


def test_a_refused_secret_is_not_shown(s3, tmp_path):
    with pytest.raises(SystemExit) as error:
        fetch(Source(path="s3://another-bucket/a.csv"), tmp_path / "files")
    assert "address 's3://another-bucket/a.csv': cannot be downloaded: " in str(error.value)
    assert "a-secret-of-mine" not in str(error.value)


def content(cached: CachedFiles, name: str) -> bytes:
    with cached.open(name) as file:
        return file.read()


def copies(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name != "lock"]


def test_cached_files_are_copied_once_and_again_when_they_change(address, tmp_path, monkeypatch):
    monkeypatch.setenv("SNAKETRAIN_CACHE", str(tmp_path / "cache"))
    cached = CachedFiles(f"{address}/*.csv")
    assert cached.names == ["a.csv", "b.csv"] and content(cached, "a.csv") == b"text\na.csv\n"
    (copy,) = copies(tmp_path / "cache")
    os.utime(copy, (0, 0))
    inode = copy.stat().st_ino
    assert content(CachedFiles(f"{address}/*.csv"), "a.csv") == b"text\na.csv\n"
    assert copy.stat().st_ino == inode and copy.stat().st_mtime > 0
    with fsspec.open(f"{address}/a.csv", "wb") as file:
        file.write(b"another content")
    fsspec.filesystem(address.partition(":")[0]).invalidate_cache()
    assert content(CachedFiles(f"{address}/*.csv"), "a.csv") == b"another content"
    assert oct((tmp_path / "cache").stat().st_mode)[-3:] == "700"


def test_the_copies_used_longest_ago_make_room(tmp_path):
    store, folder = tmp_path / "store", tmp_path / "cache"
    store.mkdir()
    for name in "abc":
        (store / name).write_bytes(name.encode() * 1000)
    cached = CachedFiles(f"file://{store}", gigabytes=2.5e-6, folder=folder)
    reading = cached.open("a")
    content(cached, "b")
    os.utime(folder / cached.files["a"].key, (1, 1))
    (folder / f"{'0' * 16}.part").touch()  # of a process that was killed
    assert content(cached, "c") == b"c" * 1000
    assert {path.name for path in copies(folder)} == {cached.files[name].key for name in "bc"}
    assert reading.read() == b"a" * 1000, "a file that is being read is read to its end"
    assert content(cached, "a") == b"a" * 1000
    assert sum(path.stat().st_size for path in copies(folder)) <= 2500
    with pytest.raises(SystemExit, match="a is larger than the cache may be, 5e-07 GB"):
        CachedFiles(f"file://{store}", gigabytes=5e-7, folder=folder)
    with pytest.raises(SystemExit, match="nothing: there is no file. Check the address"):
        CachedFiles(f"file://{store}/nothing")


def test_other_files_in_the_folder_are_left_alone(tmp_path):
    store, folder = tmp_path / "store", tmp_path / "scratch"
    others = [folder / name for name in ("thesis.tex", "half.part", "deadbeef", "data/0123456789abcdef")]
    for path in (store / "a", store / "b", *others):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * 1000)
        os.utime(path, (0, 0))
    cached = CachedFiles(f"file://{store}", gigabytes=1e-6, folder=folder)
    assert content(cached, "a") == content(cached, "b") == b"x" * 1000
    assert all(path.is_file() for path in others)
    assert [path.name for path in folder.iterdir() if path.name in (cached.files["a"].key, cached.files["b"].key)] == [
        cached.files["b"].key
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_the_copies_of_another_user_are_not_read(memory, tmp_path):
    cached = CachedFiles(memory, folder=tmp_path / "cache")
    (tmp_path / "cache" / cached.files["a.csv"].key).write_text("text\nanother text\n")
    os.chown(tmp_path / "cache", 1234, -1)
    with pytest.raises(SystemExit, match="cache: belongs to another user. Name another folder in SNAKETRAIN_CACHE"):
        CachedFiles(memory, folder=tmp_path / "cache")


def read_often(store: Path, folder: Path, log: Path) -> None:
    copy = locations.download

    def logged(files, wanted, folder):
        time.sleep(0.05)
        found = copy(files, wanted, folder)
        with open(log, "a") as file:
            file.write(f"{wanted.name}\n")
        return found

    import snaketrain.data.locations as module

    module.download = logged
    cached = CachedFiles(f"file://{store}", gigabytes=1e-3, folder=folder)
    for name in cached.names * 3:
        assert content(cached, name) == name.encode() * 1000


def test_processes_share_the_copies_and_a_killed_one_blocks_nobody(tmp_path):
    store = tmp_path / "store"
    store.mkdir()
    for name in "abcdef":
        (store / name).write_bytes(name.encode() * 1000)
    fork = multiprocessing.get_context("fork")
    work = [fork.Process(target=read_often, args=(store, tmp_path / "cache", tmp_path / "log")) for _ in range(4)]
    for process in work:
        process.start()
    limits.until(lambda: (tmp_path / "cache").is_dir() and copies(tmp_path / "cache"), 30)
    work[0].kill()
    for process in work:
        process.join()
    assert [process.exitcode for process in work[1:]] == [0, 0, 0]
    copied = (tmp_path / "log").read_text().split()
    assert len(copied) == len(set(copied)) >= 5, "each file is copied by one of them; the killed one may not have said so"


def test_the_stream_of_the_documentation_resumes(memory, tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs/own_data.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"```python\n(# my_stream.*?)```", page, re.DOTALL)
    monkeypatch.setenv("SNAKETRAIN_CACHE", str(tmp_path))
    names: dict = {}
    exec(shown, names)
    store = fsspec.filesystem("memory")
    for part in range(2):
        rows = [{"inputs": [part, row], "target": 10 * part + row} for row in range(3)]
        store.pipe_file(f"/bucket/shards/{part}.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())
    stream = names["Shards"]("memory://bucket/shards")
    targets = [target for _, target in stream]
    assert targets == [0, 1, 2, 10, 11, 12]
    for given in range(1, 7):
        for _ in zip(range(given), stream, strict=False):
            pass
        resumed = names["Shards"]("memory://bucket/shards")
        resumed.load_state_dict(stream.state_dict())
        assert [target for _, target in resumed] == targets[given:]
        assert [target for _, target in resumed] == targets, "the next pass is whole"
