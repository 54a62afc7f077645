"""Whichever nodes a training on the cluster loses, it resumes by itself from its last checkpoint, and ends with the same weights."""

import pytest

from slurm.disturbed import started_again
from slurm.lab import assert_as_undisturbed, attempts, earlier_starts_live, finished, job_of, lost, nodes_of, steps, until


@pytest.mark.parametrize("which", [0, 1], ids=["first", "second"])
def test_a_node_crashes(cluster, training, which):
    job, node = job_of(training.folder), nodes_of(job_of(training.folder))[which]
    with lost(cluster, "crash", node), started_again(training):
        pass  # elsewhere
    told = f"SLURM job {job} (train_model patient) was requeued" + (f", and SLURM says that {node} is down" if which == 0 else "")
    assert told in training.printed()  # of another node than the first, the job itself may be quicker than SLURM
    assert job_of(training.folder) == job


@pytest.mark.slow
@pytest.mark.parametrize("which", [1, 0], ids=["second", "first"])
def test_a_node_is_cut_off(cluster, training, which):
    """Its processes live on; they must neither write, nor harm the others when the node is back.

    When the first node is back, its old srun may cancel the step of the new start, which has the same number. Or SLURM may take the end of
    the old start for that of the new one, and Snakemake starts another job.
    """
    starts = attempts(training.folder)
    with started_again(training, most=1 if which else 2):
        with lost(cluster, "cut", nodes_of(job_of(training.folder))[which]):
            until(lambda: attempts(training.folder) > starts, "it is started again elsewhere", workflow=training)
        until(lambda: not earlier_starts_live(training.folder), "the processes of its earlier start have ended", workflow=training)
        step = max(steps(training.folder))
        until(lambda: max(steps(training.folder)) > step + 2, "it is not cancelled, or trains again", workflow=training)


def test_a_node_that_fails_the_training_is_left_out(cluster, training):
    """SLURM would take it for good for five more minutes, and start the job there again."""
    job, node = job_of(training.folder), nodes_of(job_of(training.folder))[1]
    cluster.act("node-timeout", "300")
    try:
        with lost(cluster, "crash", node), started_again(training):
            told = f"SLURM job {job} (train_model patient) will start without {node}, which failed it"
            until(lambda: told in training.printed(), "the node is left out", workflow=training)
    finally:
        cluster.act("node-timeout", "10")
    assert job_of(training.folder) == job


def test_after_all_losses_it_equals_an_undisturbed_training(training, undisturbed):
    finished(training)
    starts = attempts(training.folder)
    assert starts in (4, 6, 7)  # without the cuts, which are slow, or with them; one more where the first node was cut off
    assert_as_undisturbed(training.folder, undisturbed, starts)
