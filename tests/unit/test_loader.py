"""Batches loaded by worker processes: the same bits, errors that name the item, and no process left behind."""

import itertools
import logging
import multiprocessing
import random
import signal
import time

import limits
import numpy as np
import psutil
import pytest
import torch

from snaketrain.data.loading.batches import shard_batch
from snaketrain.data.loading.loader import Loader, Request, Waiting, load_in_workers
from snaketrain.data.loading.training_data import BadItem, Items

pytestmark = pytest.mark.lengthy


class Augmented:
    training, slow, bad = False, 0.0, None

    def __len__(self):
        return 60

    def __getitem__(self, number):
        time.sleep(self.slow)
        if number == self.bad:
            raise ValueError("a torn image")
        drawn = torch.rand(40, 1000) + np.random.rand() + random.random()
        return {"drawn": drawn.flatten(), "sum": drawn.sum(), "training": self.training, "number": number}


def requests(epoch=1):
    return [Request(ids, shard_batch(ids, 2, 0, 1), epoch, step) for step, ids in enumerate(np.arange(60).reshape(10, 6))]


def items(**attributes):
    dataset = Augmented()
    vars(dataset).update(attributes)
    return Items(dataset, "mine.py:Augmented", np.arange(60)[::-1].copy(), ["x"], seed=3)


def loaded(loader, data, epoch=1):
    """The bytes of all batches, and what is drawn afterwards in this process."""
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    found = [
        (request.step, microbatch.ids, {name: tensor.numpy().tobytes() for name, tensor in batch.items()})
        for request, batches in loader.load(data, requests(epoch))
        for microbatch, batch in batches.microbatches
    ]
    return found, random.random(), np.random.rand(), torch.rand(()).item()


@pytest.fixture(scope="module")
def workers_alive():
    """The processes that this file's tests started: those of other files leave some, such as multiprocessing's resource tracker."""
    before = set(psutil.Process().children())

    def alive():
        return [child for child in psutil.Process().children() if child not in before and child.status() != psutil.STATUS_ZOMBIE]

    return alive


@pytest.mark.parametrize("epoch", [1, None])
def test_any_number_of_workers_loads_the_same_bits(workers_alive, epoch):
    data, threads = items(), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        expected = loaded(Loader(), data, epoch)
        assert len(expected[0]) == 20
        for loader in (Loader(1), Loader(3), Loader(2, auto=True)):
            assert loaded(loader, data, epoch) == expected
    finally:
        torch.set_num_threads(threads)
    assert workers_alive() == []


class Kinds:
    """Tensors that travel through the pipe, and those that must keep their strides or have no array."""

    def __len__(self):
        return 60

    def __getitem__(self, number):
        return number

    def collate(self, numbers):
        images = torch.arange(len(numbers) * 3 * 4 * 4.0).view(-1, 3, 4, 4)
        large = torch.ones(len(numbers), 1 << 18)
        return {
            "small": images,
            "last": images.to(memory_format=torch.channels_last),
            "half": images.bfloat16(),
            "right": images > 5,
            "large": large,
        }


def test_tensors_from_a_worker_are_those_of_this_process():
    data = Items(Kinds(), "Kinds", np.arange(60), ["x"], seed=0)
    for (_, here), (_, sent) in zip(Loader().load(data, requests()), Loader(1).load(data, requests()), strict=True):
        for (_, expected), (_, found) in zip(here.microbatches, sent.microbatches, strict=True):
            for name, tensor in expected.items():
                assert (found[name].dtype, found[name].stride()) == (tensor.dtype, tensor.stride()), name
                assert torch.equal(found[name], tensor), name
            assert [found[name].is_shared() for name in ("small", "large")] == [False, True]
            found["small"].add_(1)  # it can be written to


def test_auto_starts_workers_only_where_data_is_waited_for(caplog):
    caplog.set_level(logging.INFO)
    busy, waits = Loader(4, auto=True), Waiting(loading=[1.0] * 8, between=[99.0] * 8)
    assert (busy.worth(waits), busy.worth(Waiting(waits.loading, [0.7] * 8))) == (0, 3)
    data = items(slow=0.01)
    list(busy.load(data, requests()))
    assert busy.found == {data: 4}
    assert "% of the time went by waiting for data: from now on 4 processes load it" in caplog.text


def test_waiting_without_workers_names_the_setting(caplog):
    list(Loader().load(items(slow=0.001), itertools.chain(*(requests() for _ in range(7)))))
    assert caplog.text.count("With compute.loader_workers: auto, worker processes load it, with the same result.") == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_names_the_item(workers_alive, workers):
    with pytest.raises(BadItem, match="mine.py:Augmented: item 7 cannot be made: ValueError: a torn image") as error:
        list(Loader(workers).load(items(bad=7), requests()))
    if workers:
        assert 'raise ValueError("a torn image")' in error.value.__notes__[0]
    assert workers_alive() == []


def test_advice_from_a_worker_is_given_as_it_is():
    data = items()
    data.collate.own = lambda items: (1, 2)
    with pytest.raises(SystemExit, match=r"data.fields: mine.py:Augmented gives 2 values for each item"):
        list(Loader(2).load(data, requests()))


def test_a_worker_that_is_killed_is_an_error(workers_alive):
    loading = load_in_workers(items(slow=0.02), iter(requests()), 2, pin_memory=False)
    next(loading)
    workers_alive()[0].kill()
    with pytest.raises(RuntimeError, match=r"DataLoader worker .*(killed by signal|exited unexpectedly)"):
        list(loading)
    assert workers_alive() == []


def train(slow: float) -> None:
    for _ in Loader(2).load(items(slow=slow), requests()):
        time.sleep(60)


@pytest.mark.parametrize("slow", [0, 100])
def test_workers_outlive_a_stop_signal_and_end_with_their_training(slow):
    """Also while an item takes long, where torch's own check comes too late."""
    process = multiprocessing.get_context("fork").Process(target=train, args=(slow,))
    process.start()
    workers = []

    def both_run():
        workers[:] = psutil.Process(process.pid).children()
        return len(workers) == 2

    limits.until(both_run)
    time.sleep(1)  # they have begun
    for worker in workers:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            worker.send_signal(number)
    time.sleep(0.3)
    assert all(worker.is_running() for worker in workers)
    process.kill()
    process.join()
    limits.until(lambda: not any(worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE for worker in workers), 4)
