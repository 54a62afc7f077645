# Once for each different `data` section; runs that have the same share it.


rule prepare_data:
    input:
        raw="results/raw/{dataset}/manifest.json",
        tokenizer=varying(pipeline.datasets, pipeline.tokenizer),
    output:
        "results/data/{dataset}/manifest.json",
    log:
        "logs/prepare_data/{dataset}.log",
    threads: pipeline.most_threads
    params:
        *pipeline.tracked("prepare_data", pipeline.datasets),
        command=untracked(pipeline.command, "prepare_data"),
        arguments=untracked(pipeline.arguments, "prepare_data"),
        tokenizer=lambda wildcards, input: f"--tokenizer {input.tokenizer}" if input.tokenizer else "",
    shell:
        "(PS4=; set -x; {params.command} --output {output} --raw {input.raw} {params.tokenizer} --threads {threads}"
        " {params.arguments}) 2>&1 | tee -i {log}"
