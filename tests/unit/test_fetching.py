"""Files of a source: found, linked, verified, replaced."""

import hashlib
import os
import sys

import pytest

from snaketrain.config.schema import Source
from snaketrain.data.fetching import NoSuchSplit, fetch, source_files, split_files

COMMIT = "ab" * 20


@pytest.fixture
def raw(tmp_path):
    for name in ("a.csv", "b.csv", "deep/c.csv", "README.md", ".hidden/x.csv", "__pycache__/y.csv"):
        (tmp_path / "raw" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "raw" / name).write_text(f"text\n{name}\n")
    return tmp_path / "raw"


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("a.csv", ["a.csv"]),
        ("", ["README.md", "a.csv", "b.csv", "deep/c.csv"]),
        ("*.csv", ["a.csv", "b.csv"]),
        ("**/*.csv", ["a.csv", "b.csv", "deep/c.csv"]),
        ("deep/*.csv", ["c.csv"]),
    ],
)
def test_a_file_a_folder_and_globs_are_linked_by_absolute_path(raw, tmp_path, path, names):
    target = tmp_path / "out/files"
    assert sorted(fetch(Source(path=str(raw / path)), target).files) == sorted(names)
    for name in names:
        assert os.path.isabs(os.readlink(target / name)) and (target / name).read_text().startswith("text\n")


def test_a_relative_path_starts_at_the_working_directory(raw, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert source_files(Source(path="raw/a.csv")) == [raw / "a.csv"]


def test_fetching_again_replaces_what_was_there(raw, tmp_path):
    target = tmp_path / "files"
    fetch(Source(path=str(raw)), target)
    assert [*fetch(Source(path=str(raw / "a.csv")), target).files] == ["a.csv"]
    assert os.listdir(target) == ["a.csv"]
    assert (raw / "b.csv").exists(), "the originals behind the links stay"


def test_a_package_is_located_without_importing_it(tmp_path, monkeypatch):
    package = tmp_path / "carries_data"
    (package / "files").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "files/d.csv").write_text("text\nx\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert source_files(Source(package="carries_data", path="files/d.csv")) == [package / "files/d.csv"]
    assert package / "files/d.csv" in source_files(Source(package="carries_data"))
    assert "carries_data" not in sys.modules


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"path": "{raw}/a.cvs"}, "Did you mean 'a.csv'"),
        ({"path": "{raw}/*.jsonl"}, "no file there"),
        ({"package": "no_such_package_at_all"}, "not installed"),
    ],
)
def test_missing_files_are_named(raw, source, message):
    with pytest.raises(ValueError, match=message):
        source_files(Source(**{key: value.format(raw=raw) for key, value in source.items()}))


def test_a_changed_file_stops_with_both_digests_and_keeps_the_old_folder(raw, tmp_path):
    right = hashlib.sha256((raw / "a.csv").read_bytes()).hexdigest()
    source = Source(path=str(raw), sha256={"a.csv": right})
    fetch(source, tmp_path / "files")
    (raw / "a.csv").write_text("changed")
    found = hashlib.sha256(b"changed").hexdigest()
    with pytest.raises(SystemExit) as stopped:
        fetch(source, tmp_path / "files")
    assert all(part in str(stopped.value) for part in ("a.csv", right, found, "configuration"))
    assert len(os.listdir(tmp_path / "files")) == 4


def test_a_digest_for_a_missing_file_is_an_error(raw, tmp_path):
    with pytest.raises(SystemExit, match=r"Did you mean 'a.csv'"):
        fetch(Source(path=str(raw), sha256={"a.csvv": "0" * 64}), tmp_path / "files")


@pytest.fixture
def hub(monkeypatch):
    """Replaces only the network: a repository whose files contain their own names."""
    import huggingface_hub

    files = ["config.json", "model.safetensors", "pytorch_model.bin", "onnx/model.onnx", "tf_model.h5", "data/[1].jsonl", ".gitattributes"]
    asked = {}

    def download(allow_patterns, local_dir, **repository):
        asked.update(repository)
        for name in huggingface_hub.utils.filter_repo_objects(files, allow_patterns=allow_patterns):
            os.makedirs(os.path.dirname(os.path.join(local_dir, name)), exist_ok=True)
            with open(os.path.join(local_dir, name), "w") as file:
                file.write(name)

    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", lambda self, **repository: files)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return asked


def test_a_model_of_the_hub_comes_without_its_duplicates_in_other_formats(hub, tmp_path):
    names = [*fetch(Source(hub="owner/name", revision=COMMIT), tmp_path / "files").files]
    assert names == ["config.json", "data/[1].jsonl", "model.safetensors"]
    assert hub == {"repo_id": "owner/name", "repo_type": "model", "revision": COMMIT}
    assert os.listdir(tmp_path) == ["files"]


def test_a_folder_of_a_hub_data_set(hub, tmp_path):
    assert [*fetch(Source(hub="owner/name", revision=COMMIT, hub_type="dataset", path="data"), tmp_path / "files").files] == ["[1].jsonl"]
    with pytest.raises(ValueError, match=r"Did you mean 'config.json'"):
        fetch(Source(hub="owner/name", revision=COMMIT, path="config.jsn"), tmp_path / "files")


def test_no_network_is_explained(monkeypatch, tmp_path):
    import huggingface_hub

    def refuse(self, **repository):
        raise ConnectionError("refused")

    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", refuse)
    with pytest.raises(SystemExit, match=r"owner/name.*cannot be downloaded: ConnectionError: refused"):
        fetch(Source(hub="owner/name", revision=COMMIT), tmp_path / "files")


GLUE = [
    "README.md",
    *(f"{config}/{split}-00000-of-00001.parquet" for config in ("sst2", "qnli") for split in ("train", "validation", "test")),
]
CONVERTED = ["sst2/train/0000.parquet", "sst2/train/0001.parquet", "sst2/test/0000.parquet", "c4/partial-train/0000.parquet"]
CARD = {
    "configs": [
        {"config_name": "sst2", "data_files": [{"split": "train", "path": "sst2/train-*"}, {"split": "test", "path": ["sst2/test-*"]}]},
        {"config_name": "qnli", "data_dir": "qnli", "data_files": {"train": "**/train-*"}},
    ]
}


@pytest.mark.parametrize(
    ("split", "config", "names", "card", "expected"),
    [
        ("train", "sst2", GLUE, CARD, [GLUE[1]]),
        ("test", "sst2", GLUE, CARD, [GLUE[3]]),
        ("train", "qnli", GLUE, CARD, [GLUE[4]]),
        ("validation", "qnli", GLUE, {}, [GLUE[5]]),
        ("train", "sst2", CONVERTED, {}, CONVERTED[:2]),
        ("train", None, ["data/train-0-of-2.parquet", "data/train-1-of-2.parquet", "data/test-0.parquet", "train.py"], {}, 2),
        ("test", None, ["train.csv", "test.csv", "latest.csv"], {"configs": [{"config_name": "default"}]}, ["test.csv"]),
        ("train", None, ["a.csv", "b.csv"], {"configs": [{"config_name": "x", "data_files": "*.csv"}]}, ["a.csv", "b.csv"]),
        ("train", None, GLUE, CARD, "it has several configurations: sst2, qnli. Name one as `config`."),
        ("train", "sst", GLUE, CARD, "no configuration 'sst'. Did you mean 'sst2'? It has: sst2, qnli."),
        ("validation", "sst2", GLUE, CARD, "no such split. It has: train, test."),
        ("train", None, GLUE, {}, "files of several folders are named after it"),
        ("train", "c4", CONVERTED, {}, "is a part of the split: the hub converts only the beginning"),
        ("train", None, ["loader.py", "README.md"], {}, "no file is named after it. There is: no file of a known format."),
    ],
)
def test_the_files_of_a_split(split, config, names, card, expected):
    if isinstance(expected, str):
        with pytest.raises(NoSuchSplit) as refused:
            split_files(split, config, names, card)
        assert expected in str(refused.value)
    else:
        found = split_files(split, config, names, card)
        assert found == (names[:expected] if isinstance(expected, int) else expected)


def test_a_split_of_a_hub_dataset_is_fetched_as_its_card_says(monkeypatch, tmp_path, request):
    asked = request.getfixturevalue("hub")
    import huggingface_hub

    def readme(repo_id, filename, repo_type, revision, local_dir):
        assert (repo_id, filename, repo_type, revision) == ("owner/name", "README.md", "dataset", COMMIT)
        path = os.path.join(local_dir, filename)
        os.makedirs(local_dir, exist_ok=True)
        with open(path, "w") as file:
            file.write("---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: data/*.jsonl\n---\n# About\n")
        return path

    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", lambda self, **repository: ["README.md", "data/[1].jsonl", "x.jsonl"])
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", readme)
    source = Source(hub="owner/name", revision=COMMIT, hub_type="dataset", split="train")
    assert [*fetch(source, tmp_path / "files").files] == ["data/[1].jsonl"]
    assert asked == {"repo_id": "owner/name", "repo_type": "dataset", "revision": COMMIT}
    with pytest.raises(ValueError, match=r"hub repository 'owner/name' at (ab)+, split 'test': no such split. It has: train."):
        fetch(source.model_copy(update={"split": "test"}), tmp_path / "files")


def test_a_source_without_a_split_is_recorded_as_before():
    """Otherwise data prepared by an earlier version would be prepared again, in a folder of another name."""
    nothing = dict.fromkeys(("package", "hub", "revision"))
    assert Source(path="a.csv").as_json == {"path": "a.csv", **nothing, "hub_type": "model", "sha256": {}}
    assert Source(hub="a/b", revision=COMMIT, hub_type="dataset", split="train").as_json["split"] == "train"
