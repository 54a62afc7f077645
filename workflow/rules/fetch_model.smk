# Fetches pretrained weights and tokenizers: a local rule, since compute nodes often have no internet access.


rule fetch_model:
    input:
        check_results("fetch_model"),
    output:
        "results/models/{model}/manifest.json",
    log:
        "logs/fetch_model/{model}.log",
    params:
        *pipeline.tracked("fetch_model"),
        command=untracked(stage_command, pipeline, "fetch_model", executes),
    shell:
        "{params.command} {log:q}"
