"""A setting of another trainer is told what it is called here, and every name that we give exists."""

import re
from pathlib import Path

import pytest
import yaml

from snaketrain.config.errors import ConfigurationError, fields_at
from snaketrain.config.files import read_configuration
from snaketrain.config.other_trainers import OURS, PRECISIONS
from snaketrain.config.references import NotFound, find, load
from snaketrain.config.runs import read
from snaketrain.config.schema import Settings

ROOT = Path(__file__).parents[2]
DATA = {"train": {"path": "train.csv"}, "tokenizer": {"path": "tokenizer"}}
ASKED_FOR = (
    "lr", "fp16", "bf16", "gradient_accumulation_steps", "per_device_train_batch_size", "num_train_epochs", "max_steps", "warmup_ratio",
    "warmup_steps", "max_grad_norm", "eval_steps", "metric_for_best_model", "load_best_model_at_end", "dataloader_num_workers",
    "gradient_checkpointing", "accelerator", "devices", "max_epochs",
)  # fmt: skip


@pytest.mark.parametrize("name", sorted(OURS))
def test_the_message_names_ours(name):
    for config, place in (
        ({"train": {name: 1}}, f"train.{name}"),
        ({name: 1}, name),
        ({"runs": {"a": {f"train.{name}": 1}}}, f"runs.a.train.{name}"),
    ):
        (problem,) = read({"data": DATA} | config).problems
        assert problem.startswith(f"{place}: no such se") and problem.endswith(f"Here it is {OURS[name]}."), problem


@pytest.mark.parametrize("name", sorted(OURS))
def test_our_names_exist_and_theirs_do_not(name):
    sections = "|".join(Settings.model_fields)
    for found in re.findall(rf"\b((?:{sections})(?:\.\w+)+)", OURS[name]):
        *parents, last = found.split(".")
        assert last in fields_at(parents), found
    assert name not in fields_at(["train"]) and name not in Settings.model_fields


@pytest.mark.parametrize("ours", sorted({ours for ours in OURS.values() if re.search(r"^[\w.]+: \{(?!\.)", ours) and "..." not in ours}))
def test_what_is_written_out_can_be_copied(ours):
    setting, _, value = ours.partition(": ")
    section, name = setting.split(".")
    assert read({"data": DATA, section: {name: yaml.safe_load(value)}}).problems == []


def test_the_names_that_users_bring_are_known():
    assert set(ASKED_FOR) <= set(OURS)
    (problem,) = read({"data": DATA, "train": {"precision": "16-mixed"}}).problems
    assert problem.endswith("Here it is fp16.") and set(PRECISIONS.values()) == {"fp16", "bf16", "fp32"}


@pytest.mark.parametrize("place", ["tasks", "strategies"])
def test_an_unknown_task_or_strategy_lists_what_can_be_named(place):
    with pytest.raises(NotFound) as error:
        find("nothing_like_it", place)
    listed = re.search(r"is not one of ([\w, ]+) \(", str(error.value))[1].split(", ")
    base = load(f"snaketrain.{place}.base.{'Task' if place == 'tasks' else 'Strategy'}")
    assert all(issubclass(load(name, place), base) for name in listed)
    docs = "".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))
    assert [name for name in listed if f"`{name}`" not in docs] == []


def test_at_most_eight_names_are_listed():
    (problem,) = read({"data": DATA, "train": {"learning_rte": 1}}).problems
    assert "Did you mean 'learning_rate'?" in problem
    assert len(problem.partition("Known here: ")[2].partition(" and ")[0].split(", ")) == 8


def test_dotted_names_on_the_command_line():
    assert read_configuration([], ["train.learning_rate=1e-4", "train.seed=3", "train={epochs: 2}"]) == {
        "train": {"learning_rate": "1e-4", "seed": 3, "epochs": 2}
    }


def test_a_target_after_configfile_is_recognised(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="plann: cannot be read .* If it is a target, write it before --configfile"):
        read_configuration(["plann"])
