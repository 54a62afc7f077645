# Params that the commands of the rules share. Another launcher or another log leads to the same result, and makes none stale.
import shlex

from snaketrain.orchestration import launching
from snaketrain.orchestration.names import run_of, set_of
from snaketrain.orchestration.rule_values import evaluation_options, inference_options, options, training_options
from snaketrain.orchestration.rule_values import job_name, untracked, varying

# in front of a stage's log and its command
logged = untracked(lambda job: launching.keep_log(show=in_job))


def python(stage):
    """The script of a stage, which runs in one process."""
    return untracked(lambda job: f"{launching.python()} {shlex.quote(str(pipeline.stages[stage].script))}")


def python_with_network(stage):
    """A script that fetches files, for which libraries are otherwise told that there is no network."""
    return untracked(lambda job: shlex.join([sys.executable, str(pipeline.stages[stage].script)]))


def launched(stage):
    """The script of a stage, which runs in the processes of `compute`."""

    def command(job):
        launcher = launching.launch(pipeline.stages[stage].compute(job), pipeline.in_slurm_job)
        return f"{launcher} {shlex.quote(str(pipeline.stages[stage].script))}"

    return untracked(command)


def settings_file(stage, job_of=str):
    """The settings and the code that decide the result, for the script; a dry run only names the file."""
    return untracked(lambda job: pipeline.stages[stage].settings_file(job_of(job), store=executes()))


def shared(stage):
    """The params that the rule of each stage has; of these, the sections of its settings and its code make its results stale."""
    return pipeline.compared(stage) | {"logged": logged, "settings": settings_file(stage)}
