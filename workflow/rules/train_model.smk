# Checkpoints, journal and logs lie beside the manifest but are not declared: Snakemake deletes what a failed job declares.


rule train_model:
    input:
        data=lambda wildcards: pipeline.data(wildcards.run),
        model=lambda wildcards: pipeline.weights(wildcards.run),
        initial=lambda wildcards: pipeline.initial_weights(wildcards.run),
    output:
        "results/runs/{run}/training/manifest.json",
    log:
        "logs/train_model/{run}.log",
    threads: lambda wildcards: pipeline.runs[wildcards.run].compute.threads
    resources:
        **launching.resources_of(lambda wildcards: pipeline.runs[wildcards.run].compute, saves=True),
    params:
        *pipeline.tracked("train_model", pipeline.runs),
        # functions that take `input` or `threads` are not compared: how it is launched makes nothing stale
        options=lambda wildcards, input: pipeline.training_options(wildcards.run),
        command=lambda wildcards, input: pipeline.command("train_model", wildcards.run),
        arguments=lambda wildcards, input: pipeline.arguments("train_model", wildcards.run),
        model=lambda wildcards, input: f"--model {input.model}" if input.model else "",
        initial=lambda wildcards, input: f"--initial {input.initial}" if input.initial else "",
    shell:
        "(PS4=; set -x; {params.command} --run-name {wildcards.run} --output {output} --data {input.data} {params.model} {params.initial}"
        " {params.options} {params.arguments}) 2>&1 | tee -i -a {log}"
