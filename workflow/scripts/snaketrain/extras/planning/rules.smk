# `snakemake --profile profiles/slurm plan`: what each run will need. Nothing is trained; data is prepared first, since its lengths decide the memory.
import shlex


localrules:
    plan,


rule plan:
    input:
        [pipeline.data(run) for run in pipeline.runs],
        [manifest for run in pipeline.runs for manifest in pipeline.weights(run)],
    log:
        "results/plan.log",
    params:
        command=shlex.join(
            [
                sys.executable,
                f"{SCRIPTS}/snaketrain/extras/planning/plan.py",
                *map(str, CONFIGURATION),
                *(["--config", *workflow.config_settings.config_args] if workflow.config_settings.config_args else []),
            ]
        ),
    shell:
        "{params.command} 2>{log:q}"
