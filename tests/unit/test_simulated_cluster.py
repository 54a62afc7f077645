"""Random histories of a simulated cluster (tests/simulation), and whether they notice errors that are put into the product.

Many more of them, and larger ones: python tests/slurm/simulate.py --histories 1000
"""

import re

import pytest
from simulation.history import History, Outcome

from snakemake_executor_plugin_slurm_steady.executor import SteadyExecutor
from snakemake_executor_plugin_slurm_steady.left_over import LeftOver
from snaketrain.slurm.client import Slurm, SlurmError

pytestmark = pytest.mark.lengthy

JOBS = 24
SEEDS = (1, 2, 3, 4, 20, 28, 30, 40)  # in each of these, some of the errors below show


@pytest.fixture
def history(tmp_path):
    def simulate(seed: int, *certain: str, jobs: int = JOBS) -> Outcome:
        return History(seed, tmp_path / "workspace", jobs, certain).run()

    return simulate


@pytest.mark.parametrize("seed", range(1, 16))
def test_every_run_ends_finished_or_with_a_reason(history, seed):
    outcome = history(seed)
    assert not outcome.problems, f"python tests/slurm/simulate.py --seed {seed} --jobs {JOBS}\n{outcome.story()}"
    assert sum(outcome.runs.values()) == JOBS // 2


def test_a_seed_repeats_its_history(history):
    once, again = history(3), history(3)
    assert once.events == again.events
    assert once.events != history(4).events


def test_without_faults_all_is_finished_in_one_go(history):
    outcome = history(4, "nothing")  # with a seed in which no command fails by chance either
    assert not outcome.problems
    assert outcome.submitted <= JOBS, "each job once; what is broken is retried"


# --- errors that are put into the product


def forgets_the_owner(monkeypatch):
    monkeypatch.setattr("simulation.jobs.check", lambda folder: None)


def never_takes_a_job_for_lost(monkeypatch):
    async def is_lost(*_):
        return False

    monkeypatch.setattr(SteadyExecutor, "is_lost", is_lost)


def leaves_unconfirmed_jobs(monkeypatch):
    monkeypatch.setattr(SteadyExecutor, "cancel_unconfirmed", lambda *_: True)


def takes_silence_for_an_empty_queue(monkeypatch):
    asks = SteadyExecutor.states_in_squeue

    async def states_in_squeue(self):
        listed = await asks(self)
        return {} if listed is None else listed

    asks_of_one = Slurm.is_over

    def is_over(self, number, **how):
        try:
            return asks_of_one(self, number, **how)
        except SlurmError:
            return True

    monkeypatch.setattr(SteadyExecutor, "states_in_squeue", states_in_squeue)
    monkeypatch.setattr(Slurm, "is_over", is_over)


def retries_what_was_cancelled(monkeypatch):
    monkeypatch.setattr("snakemake_executor_plugin_slurm_steady.ends.failure", lambda *_: None)


def ignores_what_is_left_over(monkeypatch):
    monkeypatch.setattr(LeftOver, "settle", lambda *_: None)


def cannot_read_an_answer(monkeypatch):
    async def failing(self, number, state):
        raise ValueError("not an answer of squeue")

    monkeypatch.setattr(SteadyExecutor, "is_lost", failing)


def trusts_squeue_alone(monkeypatch):
    monkeypatch.setattr(Slurm, "is_over", lambda *_, **__: True)


def ignores_jobs_in_the_queue(monkeypatch):
    monkeypatch.setattr("snakemake_executor_plugin_slurm_steady.submitting.LIMIT", re.compile("no such words"))
    monkeypatch.setattr("snakemake_executor_plugin_slurm_steady.checks.LIMIT", re.compile("no such words"))


def takes_unregistered_nodes_for_missing(monkeypatch):
    monkeypatch.setattr("snakemake_executor_plugin_slurm_steady.submitting.awaits_nodes", lambda *_: False)


def excludes_no_node(monkeypatch):
    monkeypatch.setattr(SteadyExecutor, "exclude_node_of", lambda *_: "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "faults", "problem"),
    [
        (forgets_the_owner, ["node is cut off"], "two writers"),
        (never_takes_a_job_for_lost, ["stopped for a while"], "waits for ever"),
        (leaves_unconfirmed_jobs, ["controller overloaded"], "is in the queue, and is submitted again"),
        (takes_silence_for_an_empty_queue, ["controller away"], "taken for over, but its job"),
        (retries_what_was_cancelled, ["user cancels a job"], "was cancelled by the user, and is submitted again"),
        (ignores_what_is_left_over, ["kill -9"], "is in the queue, and is submitted again"),
        (cannot_read_an_answer, ["stopped for a while"], "nothing says why"),
        (leaves_unconfirmed_jobs, ["answer of sbatch lost"], "is in the queue, and is submitted again"),
        (trusts_squeue_alone, ["squeue garbled"], "taken for over, but its job"),
        (ignores_jobs_in_the_queue, ["limit full"], "fails at a limit"),
        (takes_unregistered_nodes_for_missing, ["controller returns slowly"], "failed for lack of nodes"),
        (excludes_no_node, ["node unfit"], "on which it has failed"),
    ],
)
def test_the_histories_notice_an_error(history, monkeypatch, error, faults, problem):
    error(monkeypatch)
    assert any(problem in each for seed in SEEDS for each in history(seed, *faults).problems)
