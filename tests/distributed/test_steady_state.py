"""A step without logging, evaluation or saving communicates only gradients, and does not synchronise with the device."""

import json
from collections import Counter
from pathlib import Path

import pytest
from distributed import forking
from distributed.test_strategies import EVERYWHERE, job

RUNNER = Path(__file__).with_name("steady_state_runner.py")
ARGUMENTS = {"hsdp": {"shard": 2}}
# in the forward pass of transformers' BERT, which checks whether a mask masks anything
BY_THE_MODEL = 1
# fairscale compares the norm of the gradients with the maximum on the host
BY_THE_UPDATE = {"fairscale_oss": 1, "fairscale_fsdp": 1}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> dict[str, dict[str, list[str]]]:
    folder = tmp_path_factory.mktemp("steady")
    jobs, results, log = (folder / name for name in ("jobs.json", "results.json", "log"))
    strategies = ("single", "hsdp", *EVERYWHERE)
    jobs.write_text(json.dumps([[name, "recorded", job(name, "bert", arguments=ARGUMENTS.get(name), steps=5)] for name in strategies]))
    forking.preload()
    assert forking.run([str(jobs), str(results)], 2, log, RUNNER) == [0, 0], log.read_text()[-8000:]
    return json.loads(results.read_text())


def collectives(events: list[str]) -> Counter[str]:
    return Counter(event for event in events if event.startswith("collective"))


@pytest.mark.parametrize("strategy", ["single", "hsdp", *EVERYWHERE])
def test_the_trainer_adds_one_exchange_of_scalars_that_no_step_waits_for(recorded, strategy):
    plain, trainer = recorded[strategy]["plain"], recorded[strategy]["trainer"]
    several = strategy != "single"
    assert bool(collectives(plain)) == several
    assert collectives(trainer) == collectives(plain) + Counter({"collective allreduce_": int(several)})
    own = [event for event in trainer if not event.startswith("collective")]
    computed = [event for event in plain if not event.startswith("collective")]
    # the scalars of the next step are in transit while this one is computed; then the host asks whether the previous one was applied
    assert own == ["scalars started", *computed, "item", "of a host copy", "scalars read"]


@pytest.mark.parametrize("strategy", ["single", "hsdp", *EVERYWHERE])
def test_no_strategy_waits_for_the_device_to_decide_on_an_update(recorded, strategy):
    items = ["item"] * BY_THE_MODEL, ["item"] * BY_THE_UPDATE.get(strategy, 0)
    assert [event for event in recorded[strategy]["plain"] if not event.startswith("collective")] == [
        *items[0], "forward_backward", *items[1], "update",
    ]  # fmt: skip
