# While Snakemake plans a job, its earlier results are checked: a stage whose files are missing or damaged runs again.
from snaketrain.orchestration.repairing import Repairs
from snaketrain.orchestration.submissions import Submissions


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

    return check if workflow.is_main_process else []


if workflow.is_main_process:
    repairs = Repairs(pipeline, lambda line: print(line, file=sys.stderr, flush=True), Submissions().written_unseen())
    repairs.tell_of_upgrades()
    pipeline.as_input = as_input
    pipeline.ancient = ancient
