# When Snakemake plans a job, it looks at what the job made before: a stage whose files are missing or changed runs again.
from snaketrain.orchestration.repairing import Repairs


def as_input(stage, name):
    """A manifest that is made again just as it was counts as old: its readers need not run."""
    manifest = pipeline.manifest(stage, name)
    return ancient(manifest) if repairs.comes_out_the_same(stage, name) else manifest


def look_at(stage):
    """An input function without input: when Snakemake plans a job, it looks at what the job made before."""

    def look(wildcards):
        name = wildcards[0] if wildcards else ""
        if repairs.needed(stage, name):
            # Snakemake would not run what was asked for below a stage that makes nothing new
            if workflow.dag_settings.forcerun and repairs.comes_out_the_same(stage, name):
                repairs.tell(f"{stage} waits for the next start, since other stages were asked for.")
            else:
                workflow.dag.forcefiles.add(pipeline.manifest(stage, name))
        return []

    return look if workflow.is_main_process else []


if workflow.is_main_process:
    repairs = Repairs(pipeline, lambda line: print(line, file=sys.stderr, flush=True))
    pipeline.as_input = as_input
