# Fetches raw data: a local rule, since compute nodes often have no internet access.


rule fetch_data:
    input:
        check_results("fetch_data"),
    output:
        "results/raw/{dataset}/manifest.json",
    log:
        "logs/fetch_data/{dataset}.log",
    params:
        *pipeline.tracked("fetch_data"),
        command=untracked(stage_command, pipeline, "fetch_data", executes),
    shell:
        "{params.command} {log:q}"
