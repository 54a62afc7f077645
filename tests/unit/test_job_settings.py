"""The settings file of a job: the exact settings, under a unique name, with passwords concealed."""

import json
import os
import time
from pathlib import Path

import pytest

from snaketrain.config.schema import Train
from snaketrain.runtime.stages import UNUSED_DAYS, JobSettings, remove_unused, settings_words

CODE = {"train_model": "01", "snaketrain.tasks.base": "23", "own/a=b.py": "45"}
ARGUMENTS = {"eps": 1e-8, "deep": {"a.b": 1, "odd key": {"c": None}}, "empty": {}, "text": "ü \n 'x' \" =", "flag": True, "many": [1, 2.0]}


def settings_of(**train) -> JobSettings:
    return JobSettings("train_model", {"train": Train.model_validate(train).as_json}, CODE)


def test_reading_returns_what_was_written(tmp_path):
    given = settings_of(optimizer={"use": "torch.optim.AdamW", "arguments": ARGUMENTS})
    assert JobSettings.read(given.store("small", tmp_path)) == given


def test_a_reader_finds_sections_and_modules(tmp_path):
    content = json.loads(settings_of(seed=7).store("small", tmp_path).read_text())
    assert content["stage"] == "train_model" and content["settings"]["train"]["seed"] == 7
    assert content["code"] == CODE


def test_other_settings_have_another_file(tmp_path):
    one, other = (settings_of(seed=seed).store("small", tmp_path) for seed in (1, 2))
    assert one != other and one.exists() and one.parent == tmp_path / "train_model"
    written = one.stat()
    assert settings_of(seed=1).store("small", tmp_path).stat().st_ino == written.st_ino, "it is not written again"
    one.write_text("changed by hand")
    assert JobSettings.read(settings_of(seed=1).store("small", tmp_path)) == settings_of(seed=1)


def test_a_file_names_the_variables_and_not_their_values(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_PASSWORD", "geheim3")
    arguments = {"address": "https://anna:${SOME_PASSWORD}@data.example", "count": 3}
    path = settings_of(task={"use": "x.Y", "arguments": arguments}).store("small", tmp_path)
    assert "geheim3" not in path.read_text() and path.stat().st_mode & 0o137 == 0
    assert JobSettings.read(path).settings["train"]["task"]["arguments"] == arguments


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"stage": "x", "settings": {}, "code": {}}'])
def test_an_unreadable_settings_file_is_an_error(tmp_path, content):
    if content is not None:
        (tmp_path / "given.json").write_text(content)
    with pytest.raises(SystemExit, match=r"given.json: not a readable settings file"):
        JobSettings.read(tmp_path / "given.json")


def test_settings_for_a_script_started_without_snakemake(tmp_path):
    option, file = settings_words(tmp_path / "made", "train_model", {"train": {"seed": 1}})
    assert option == "--settings" and JobSettings.read(file) == JobSettings("train_model", {"train": {"seed": 1}}, {})
    assert Path(file).parent.parent == tmp_path / "settings"


def test_files_that_no_job_was_started_with_for_a_month_are_removed(tmp_path):
    """But not those of settings that are still in use, however long ago they were first written."""
    stored = {name: JobSettings("train_model", {"train": {"name": name}}, {}).store(name, tmp_path) for name in ("old", "used", "new")}
    long_ago = time.time() - (UNUSED_DAYS + 1) * 24 * 3600
    for name in ("old", "used"):
        os.utime(stored[name], (long_ago, long_ago))
    JobSettings("train_model", {"train": {"name": "used"}}, {}).store("used", tmp_path)  # a job is started with them again
    remove_unused(tmp_path)
    assert {name for name, path in stored.items() if path.exists()} == {"used", "new"}
    remove_unused(tmp_path / "nothing here")
