"""Iterable datasets: read in order by all ranks, resumed where they were, and refused where a setting needs a length."""

import itertools
import json
import logging
import random

import numpy as np
import pytest
import torch

from snaketrain.config.errors import ConfigurationError
from snaketrain.config.schema import Data, Train
from snaketrain.data.cells import BadData
from snaketrain.data.loading.batches import shard_batch
from snaketrain.data.loading.loader import Loader, Request
from snaketrain.data.loading.streams import Stream, StreamBatches, StreamProgress, is_stream
from snaketrain.data.loading.training_data import BadItem
from snaketrain.data.preparing import prepare_items
from snaketrain.orchestration.preflight import examine
from snaketrain.training.plan import Plan

SOURCE = """
import torch  # noqa: E402


class Plain:
    # seven examples a pass, with noise
    def __init__(self, **attributes):
        self.passes, self.given, self.order = [], 0, 0
        vars(self).update(attributes)

    def set_epoch(self, number):
        self.order = number
        self.passes.append(number)

    def examples(self, first):
        for number in range(first, 7):
            self.given += 1
            yield {"number": 100 * self.order + number, "noise": torch.rand(())}

    def __iter__(self):
        return self.examples(0)


class Resumable(Plain):
    at = 0

    def __iter__(self):
        first, self.at = self.at, 0
        for example in self.examples(first):
            first += 1
            self.saved = {"at": first}
            yield example

    def state_dict(self):
        return self.saved

    def load_state_dict(self, state):
        self.at = state["at"]


class Forgetful(Resumable):
    def load_state_dict(self, state):
        self.at = state["at"] - 1


class Unsaveable(Resumable):
    def state_dict(self):
        return {"file": object()}


class Torn(Plain):
    def __iter__(self):
        yield {"number": 0}
        raise OSError("no such shard")


class Once(Plain):
    done = False

    def __iter__(self):
        done, self.done = self.done, True
        return iter(()) if done else self.examples(0)


class OfTorch(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter([(1.0, 2)])


class Numbered:
    def __init__(self, count=5):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        return {"number": number, "noise": 0.0}


def make(count):
    return Plain()
"""
BATCH = 4


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(SOURCE, names)
    return names


def stream_of(dataset) -> Stream:
    return Stream(dataset, "mine.py:Mine", ["x"], seed=3, batch_size=BATCH)


def requests(first=0, steps=6, rank=0, ranks=1):
    for step, ids in itertools.islice(next(StreamBatches(BATCH, steps).after(first, steps))[1], steps):
        yield Request(ids, shard_batch(ids, 1, rank, ranks), 0, step)


def read(stream, loader=None, **which):
    """All fields of the examples of each step."""
    found = {}
    for request, loaded in (loader or Loader()).load(stream, requests(**which)):
        ((_, batch),) = loaded.microbatches
        found[request.step] = {name: values.tolist() for name, values in batch.items()}
    return found


def test_steps_continue_over_passes_each_in_its_own_order(mine):
    dataset = mine["Plain"]()
    found = read(stream_of(dataset), steps=4)
    numbers = [number for step in sorted(found) for number in found[step]["number"]]
    assert numbers == [*range(7), *range(100, 107), 200, 201]
    assert dataset.passes == [0, 1, 2]
    assert [found[step]["ids"] for step in (1, 4)] == [[0, 1, 2, 3], [12, 13, 14, 15]]


@pytest.mark.parametrize("kind", ["Plain", "Resumable"])
def test_workers_and_ranks_give_the_same_examples(mine, kind):
    expected = read(stream_of(mine[kind]()))
    drawn = {value for step in expected.values() for value in step["noise"]}
    assert len(drawn) == 24, "every example draws numbers of its own"
    for loader in (Loader(1), Loader(3), Loader(2, auto=True)):
        assert read(stream_of(mine[kind]()), loader) == expected
    ranks = [read(stream_of(mine[kind]()), rank=rank, ranks=2) for rank in (0, 1)]
    for step, batch in expected.items():
        for rank in (0, 1):
            assert ranks[rank][step] == {name: values[rank::2] for name, values in batch.items()}


def test_random_numbers_elsewhere_are_unaffected(mine):
    def drawn(between):
        random.seed(0), np.random.seed(0), torch.manual_seed(0)
        between()
        return random.random(), np.random.rand(), torch.rand(()).item()

    assert drawn(lambda: read(stream_of(mine["Plain"]()))) == drawn(lambda: None)


def interrupted(dataset, after: int, ahead: int = 1, loader: Loader | None = None) -> dict:
    """What a checkpoint saves after a step although later items were already read."""
    stream = stream_of(dataset)
    progress = StreamProgress(stream.name, stream.restart)
    for request, loaded in (loader or Loader()).load(stream, requests()):
        progress.loaded(request.step, loaded.position)
        if request.step > ahead:
            progress.done(request.step - ahead)
        if request.step == after + ahead:
            return dict(progress.state_dict())
    raise AssertionError("it ended before")


def resumed(dataset, state: dict, loader: Loader | None = None) -> dict:
    stream = stream_of(dataset)
    progress = StreamProgress(stream.name, stream.restart)
    progress.load_state_dict(state)
    found = {}
    for request, loaded in (loader or Loader()).load(stream, requests(first=state["read"] // BATCH)):
        progress.loaded(request.step, loaded.position)
        ((_, batch),) = loaded.microbatches
        found[request.step] = {name: values.tolist() for name, values in batch.items()}
    return found


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", ["Plain", "Resumable"])
@pytest.mark.parametrize("after", [1, 2, 3])  # within the first pass, within the second, and after it
def test_a_resumed_stream_continues_with_the_next_example(mine, kind, after, workers, caplog):
    expected = read(stream_of(mine[kind]()))
    state = interrupted(mine[kind](), after, loader=Loader(workers))
    dataset = mine[kind]()
    assert resumed(dataset, state, Loader(workers)) == {step: batch for step, batch in expected.items() if step > after}
    assert "did not resume" not in caplog.text
    if not workers:  # a stream with a state does not repeat items
        assert dataset.given == 24 - after * BATCH + (0 if kind == "Resumable" else state["of_pass"])
        assert ("it is read again past" in caplog.text) == (kind == "Plain" and state["of_pass"] > 0)


def test_a_stream_that_resumes_elsewhere_is_reported(mine, caplog):
    state = interrupted(mine["Resumable"](), 1)
    resumed(mine["Forgetful"](), state)
    assert "mine.py:Mine did not resume where it was, after 4 examples: its next example differs" in caplog.text


def test_a_batch_can_be_loaded_again_when_the_next_one_has_been_read(mine):
    """As after running out of memory; with a worker, this process first goes back to the last completed step."""
    expected, stream = read(stream_of(mine["Resumable"]())), stream_of(mine["Resumable"]())
    stream.batch(range(4)), stream.batch(range(4, 8))
    assert stream.batch([1, 3])["number"].tolist() == expected[1]["number"][1::2]
    behind, progress = stream_of(dataset := mine["Resumable"]()), None
    progress = StreamProgress(behind.name, behind.restart)
    for request, loaded in Loader(1).load(behind, requests(steps=3)):
        progress.loaded(request.step, loaded.position)
        if request.step < 3:
            progress.done(request.step)
    again = behind.batch(range(8, 12))
    assert {name: values.tolist() for name, values in again.items()} == expected[3]
    assert dataset.given == 4


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        ("Unsaveable", SystemExit, "data.train: the `state_dict` of mine.py:Mine cannot be saved in a checkpoint: "),
        ("Torn", BadItem, "mine.py:Mine: the example after 1 others cannot be read: OSError: no such shard"),
        ("Once", SystemExit, r"mine.py:Mine ends after 7 examples, and its next `iter\(\)` gives none"),
    ],
)
def test_what_cannot_be_read_or_saved_is_an_error(mine, kind, error, words):
    with pytest.raises(error, match=words):
        read(stream_of(mine[kind](saved={"file": object()})))


def test_a_stream_is_distinguished_from_a_map_style_dataset(mine):
    assert [is_stream(mine[kind]()) for kind in ("Plain", "OfTorch", "Numbered")] == [True, True, False]


def data(**changes) -> Data:
    given = {"train": {"use": "mine.py:Plain"}, "dev": {"use": "mine.py:Numbered"}, "test_fraction": 0}
    return Data.model_validate(given | changes)


def test_prepared_facts_describe_the_stream_and_number_the_dev_set(mine, tmp_path):
    facts = prepare_items(data(), tmp_path)
    fields = {"number": {"shape": [], "type": "int64"}, "noise": {"shape": [], "type": "float32"}}
    assert facts["splits"]["train"] == {"stream": True, "examples": None, "labelled": True, "fields": fields}
    assert (facts["splits"]["dev"]["examples"], facts["splits"]["test"]["examples"]) == (5, 0)
    assert facts["datasets"]["train"] == {"use": "mine.py:Plain", "arguments": {}}
    assert sorted(path.name for path in tmp_path.glob("*.npy")) == ["dev.npy", "test.npy"]
    json.dumps(facts)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dev": None}, "data.dev: is missing, and nothing can be split off from data.train, since mine.py:Plain is a stream"),
        ({"test_fraction": 0.1}, "data.test: is missing"),
        ({"limit_train": 5}, "data.limit_train: has no meaning for mine.py:Plain"),
        ({"dev": {"use": "mine.py:Numbered", "arguments": {"count": 0}}}, "data.dev: mine.py:Numbered has no items"),
    ],
)
def test_splits_that_a_stream_cannot_provide_are_refused(mine, tmp_path, changes, words):
    with pytest.raises(BadData, match=words):
        prepare_items(data(**changes), tmp_path)


def test_only_the_training_data_can_be_a_stream(mine, tmp_path):
    with pytest.raises(SystemExit, match=r"data.dev.use: mine.py:Plain has no length or no items .* Only data.train can be a stream"):
        prepare_items(data(dev={"use": "mine.py:Plain"}), tmp_path)


def test_a_plan_needs_steps_and_has_one_epoch(mine):
    plan = Plan.of(Train(batch_size=4, steps=6, evaluate_every=2), None)
    assert (plan.steps, plan.epoch_ends, plan.epochs_done(3)) == (6, (6,), 0.5)
    with pytest.raises(SystemExit, match=r"train.steps: is missing. data.train is a stream"):
        Plan.of(Train(batch_size=4), None)
    with pytest.raises(SystemExit, match=r"train.batch_tokens: needs lengths"):
        Plan.of(Train(batch_tokens=100, steps=5), None)


@pytest.mark.parametrize("kind", ["Resumable", "OfTorch"])
def test_settings_that_a_stream_contradicts_are_reported_before_any_job(mine, by_effect, kind):
    use = f"mine.py:{kind}"
    config = {"data": {"train": {"use": use}}, "model": {"use": "torch.nn.Linear", "arguments": {"in_features": 1, "out_features": 1}}}
    config |= {"train": {"task": {"use": "module", "arguments": {"losses": {"output": "torch.nn.MSELoss"}}}}, "select": {"metric": "loss"}}
    with pytest.raises(ConfigurationError) as error:
        examine(config)
    for problem in ("data.dev: is missing, and", "data.test: is missing, and", "train.steps: is missing. data.train is a stream"):
        assert problem in str(error.value)
    config["data"] |= {"dev": {"use": "mine.py:Numbered"}, "test_fraction": 0}
    config["train"] |= {"steps": 5}
    examine(config)


def test_a_dataset_of_hugging_face_resumes(caplog):
    """Its shards in order, and an example of each pass."""
    import datasets

    caplog.set_level(logging.WARNING)

    def made():
        return datasets.IterableDataset.from_generator(
            lambda parts: ({"x": 10 * part + i} for part in parts for i in range(5)), gen_kwargs={"parts": [0, 1]}
        )

    expected = read(stream_of(made()))
    state = interrupted(made(), 3)
    assert resumed(made(), state) == {step: batch for step, batch in expected.items() if step > 3}
    assert "did not resume" not in caplog.text
