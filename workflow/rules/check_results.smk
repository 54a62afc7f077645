# While Snakemake plans a job, its earlier results are checked: a stage whose files are missing or damaged runs again.
from snaketrain.orchestration.repairing import Repairs
from snaketrain.slurm.submissions import Submissions


def as_input(stage, name):
    """A manifest that will come out the same counts as old, so that its readers do not run."""
    manifest = pipeline.manifest(stage, name)
    return ancient(manifest) if repairs.comes_out_the_same(stage, name) else manifest


def check_results(stage):
    """An input function that returns no input: Snakemake calls it while planning a job, which is the time to force the job."""

    def check(wildcards):
        name = wildcards[0] if wildcards else ""
        if repairs.needed(stage, name):
            # Snakemake would not run the requested rules that depend on a stage whose results come out the same
            if workflow.dag_settings.forcerun and repairs.comes_out_the_same(stage, name):
                repairs.tell(f"{stage} waits for the next start, since other stages were asked for.")
            else:
                workflow.dag.forcefiles.add(pipeline.manifest(stage, name))
        return []

    return check if workflow.is_main_process else []


if workflow.is_main_process:
    repairs = Repairs(pipeline, lambda line: print(line, file=sys.stderr, flush=True), Submissions().written_unseen())
    pipeline.as_input = as_input
