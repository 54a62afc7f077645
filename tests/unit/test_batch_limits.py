"""How much an evaluation computes at once: what fitted in the training."""

import json

import pytest

from snaketrain.config.schema import Train
from snaketrain.runtime.manifests import write_checked
from snaketrain.runtime.run_folder import MICROBATCHES, microbatches_that_fit
from snaketrain.training.batch_limits import BatchLimits


@pytest.mark.parametrize(
    ("train", "microbatches", "ranks", "expected"),
    [
        (Train(batch_size=32), 1, 1, BatchLimits(64)),
        (Train(batch_size=32), 4, 2, BatchLimits(8)),
        (Train(batch_size=2), 1, 8, BatchLimits(1)),
        (Train(batch_size=512, batch_tokens=60_000), 2, 3, BatchLimits(170, 10_000)),
    ],
)
def test_a_rank_evaluates_the_examples_of_two_microbatches_and_the_tokens_of_one(train, microbatches, ranks, expected):
    assert BatchLimits.of(train, microbatches, ranks) == expected


def test_all_ranks_evaluate_as_many_together():
    assert BatchLimits(8, 100).over(3) == (24, 300) and BatchLimits(8).over(3) == (24, None)


@pytest.mark.parametrize(
    ("attempts", "microbatches", "examples"),
    [
        ([{"processes": 8, "data_parallel_size": 4}], None, 16),
        ([{"processes": 8, "data_parallel_size": 8}, {"processes": 2, "data_parallel_size": 2}], None, 32),
        ([{"processes": 2, "data_parallel_size": 2}], 8, 8),
        ([{"processes": 4}], None, 16),
        ([], None, 64),
    ],
    ids=["a replica has two ranks", "continued on fewer", "after running out of memory", "an earlier version", "no journal"],
)
def test_a_job_that_evaluates_computes_as_much_as_its_training_did_last(tmp_path, attempts, microbatches, examples):
    lines = [json.dumps({"event": "attempt", "resume_step": 0, **attempt}) + "\n" for attempt in attempts]
    if attempts:
        (tmp_path / "journal.jsonl").write_text("".join(lines))
    if microbatches:
        write_checked(tmp_path / MICROBATCHES, {"microbatches": microbatches})
    assert BatchLimits.of_finished(tmp_path, Train(batch_size=64, accumulate=2)) == BatchLimits(examples)


def test_an_edited_number_of_microbatches_is_told_and_not_used(tmp_path, capsys):
    path = tmp_path / MICROBATCHES
    write_checked(path, {"microbatches": 4})
    assert microbatches_that_fit(tmp_path) == 4
    path.write_text(path.read_text().replace("4", "8", 1))
    assert microbatches_that_fit(tmp_path) == 0 and f"warning: {path}: cannot be used" in capsys.readouterr().err
