# Fetches the files of an evaluation set, or of unlabelled data that a model is to predict: a local rule, since compute nodes often have no internet access.


rule fetch_input:
    input:
        check_results("fetch_input"),
    output:
        "results/inputs/{input_name}/manifest.json",
    log:
        "logs/fetch_input/{input_name}.log",
    params:
        *pipeline.tracked("fetch_input"),
        command=untracked(stage_command, pipeline, "fetch_input", executes),
    shell:
        "{params.command} {log:q}"
