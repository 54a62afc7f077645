# What the rules share: params, of which another launcher or another log makes no result stale; and the check of earlier results.
import shlex

from snaketrain.orchestration import launching
from snaketrain.orchestration.names import run_of
from snaketrain.orchestration.repairing import Repairs
from snaketrain.orchestration.rule_values import evaluation_options, inference_options, options, training_options
from snaketrain.orchestration.rule_values import TAKES_WILDCARDS, job_name, untracked, varying, with_parameters
from snaketrain.orchestration.submissions import Submissions

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


def in_report(file, caption, labels):
    """A result that Snakemake's report shows, of one run or of all."""
    place = {"category": "Runs", "subcategory": "{run}"} if "{run}" in file else {"category": "Comparison"}
    return report(file, **place, labels=labels, caption=caption)


# While Snakemake plans a job, its earlier results are checked: a stage whose files are missing or damaged runs again.
def as_input(stage, name):
    """A manifest that will be reproduced unchanged is marked `ancient`, so that stages that read it do not rerun."""
    manifest = pipeline.manifest(stage, name)
    return ancient(manifest) if repairs.reproduces_its_results(stage, name) else manifest


def check_results(stage):
    """An input function that returns no input: Snakemake calls it while planning a job, which is the time to force the job."""

    def check(wildcards):
        name = job_name(wildcards)
        pipeline.stages[stage].check(name)
        if repairs.needed(stage, name):
            # Snakemake would not run the requested rules that depend on a stage whose results are reproduced unchanged
            if workflow.dag_settings.forcerun and repairs.reproduces_its_results(stage, name):
                repairs.report(f"{stage} will rerun at the next start, since other stages were requested now.")
            else:
                workflow.dag.forcefiles.add(pipeline.manifest(stage, name))
        return []

    return with_parameters(TAKES_WILDCARDS, check) if workflow.is_main_process else []


if workflow.is_main_process:
    repairs = Repairs(pipeline, lambda line: print(line, file=sys.stderr, flush=True), Submissions().written_unseen())
    repairs.tell_of_upgrades()
    pipeline.as_input = as_input
    pipeline.ancient = ancient
