# Raw data: a local rule, since compute nodes often reach no network.


rule fetch_data:
    input:
        lambda wildcards: pipeline.raw_files(wildcards.dataset),
    output:
        "results/raw/{dataset}/manifest.json",
    log:
        "logs/fetch_data/{dataset}.log",
    params:
        *pipeline.tracked("fetch_data", pipeline.datasets),
        command=lambda wildcards, input: pipeline.command("fetch_data", wildcards.dataset),
        arguments=lambda wildcards, input: pipeline.arguments("fetch_data", wildcards.dataset),
    shell:
        "(PS4=; set -x; {params.command} --output {output} {params.arguments}) 2>&1 | tee -i {log}"
