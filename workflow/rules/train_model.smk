# Checkpoints, journal and logs lie beside the manifest but are not declared: Snakemake deletes what a failed job declares.


rule train_model:
    input:
        look_at("train_model"),
        data=varying(pipeline.runs, pipeline.data),
        model=varying(pipeline.runs, pipeline.weights),
        initial=varying(pipeline.runs, pipeline.initial_weights),
    output:
        "results/runs/{run}/training/manifest.json",
    log:
        "logs/train_model/{run}.log",
    threads: varying(pipeline.runs, lambda run: pipeline.computes[run].threads)
    resources:
        **launching.resources_of(pipeline.computes, saves=True),
    params:
        *pipeline.tracked("train_model", pipeline.runs),
        command=untracked(stage_command, pipeline, "train_model"),
    shell:
        "{params.command} -a {log:q}"
