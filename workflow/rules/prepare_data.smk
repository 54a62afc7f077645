# Once for each different `data` section; runs that have the same share it.


rule prepare_data:
    input:
        raw="results/raw/{dataset}/manifest.json",
        tokenizer=lambda wildcards: pipeline.tokenizer(wildcards.dataset),
    output:
        "results/data/{dataset}/manifest.json",
    log:
        "logs/prepare_data/{dataset}.log",
    threads: pipeline.most_threads
    params:
        *pipeline.tracked("prepare_data", pipeline.datasets),
        command=lambda wildcards, input: pipeline.command("prepare_data", wildcards.dataset),
        arguments=lambda wildcards, input: pipeline.arguments("prepare_data", wildcards.dataset),
        tokenizer=lambda wildcards, input: f"--tokenizer {input.tokenizer}" if input.tokenizer else "",
    shell:
        "(PS4=; set -x; {params.command} --output {output} --raw {input.raw} {params.tokenizer} --threads {threads}"
        " {params.arguments}) 2>&1 | tee -i {log}"
