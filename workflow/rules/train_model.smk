# Checkpoints, journal and logs are beside the manifest but not declared: Snakemake deletes the declared outputs of failed jobs.


rule train_model:
    input:
        check_results("train_model"),
        data=varying(pipeline.runs, pipeline.data),
        model=varying(pipeline.runs, pipeline.weights),
        initial=varying(pipeline.runs, pipeline.initial_weights),
        trunk=varying(pipeline.runs, pipeline.trunk),
    output:
        "results/runs/{run}/training/manifest.json",
    log:
        "logs/train_model/{run}.log",
    group:
        pipeline.groups
    threads: launching.threads_of(pipeline.computes_of("train_model"))
    resources:
        **launching.resources_of(pipeline.computes_of("train_model"), saves=True),
    params:
        *pipeline.tracked("train_model"),
        command=untracked(stage_command, pipeline, "train_model", executes),
    shell:
        "{params.command} -a {log:q}"
