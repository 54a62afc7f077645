# Pretrained weights and tokenizers: a local rule, since compute nodes often reach no network.


rule fetch_model:
    input:
        lambda wildcards: pipeline.model_files(wildcards.model),
    output:
        "results/models/{model}/manifest.json",
    log:
        "logs/fetch_model/{model}.log",
    params:
        *pipeline.tracked("fetch_model", pipeline.models),
        command=untracked(pipeline.command, "fetch_model"),
        arguments=untracked(pipeline.arguments, "fetch_model"),
    shell:
        "(PS4=; set -x; {params.command} --output {output} {params.arguments}) 2>&1 | tee -i {log}"
