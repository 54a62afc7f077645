# Once for each different `data` section; runs that have the same share it.


rule prepare_data:
    input:
        look_at("prepare_data"),
        raw=varying(pipeline.datasets, pipeline.raw),
        tokenizer=varying(pipeline.datasets, pipeline.tokenizer),
    output:
        "results/data/{dataset}/manifest.json",
    log:
        "logs/prepare_data/{dataset}.log",
    threads: pipeline.most_threads
    params:
        *pipeline.tracked("prepare_data", pipeline.datasets),
        command=untracked(stage_command, pipeline, "prepare_data"),
    shell:
        "{params.command} {log:q}"
