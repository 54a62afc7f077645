# Raw data: a local rule, since compute nodes often reach no network.


rule fetch_data:
    input:
        look_at("fetch_data"),
    output:
        "results/raw/{dataset}/manifest.json",
    log:
        "logs/fetch_data/{dataset}.log",
    params:
        *pipeline.tracked("fetch_data", pipeline.datasets),
        command=untracked(stage_command, pipeline, "fetch_data"),
    shell:
        "{params.command} {log:q}"
