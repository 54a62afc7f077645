# Checkpoints, journal and logs lie beside the manifest but are not declared: Snakemake deletes what a failed job declares.


rule train_model:
    input:
        data=varying(pipeline.runs, pipeline.data),
        model=varying(pipeline.runs, pipeline.weights),
        initial=varying(pipeline.runs, pipeline.initial_weights),
    output:
        "results/runs/{run}/training/manifest.json",
    log:
        "logs/train_model/{run}.log",
    threads: varying(pipeline.runs, lambda run: pipeline.computes[run].threads)
    resources:
        **launching.resources_of(pipeline.computes, saves=True),
    params:
        *pipeline.tracked("train_model", pipeline.runs),
        # how it is launched makes nothing stale
        options=untracked(pipeline.training_options),
        command=untracked(pipeline.command, "train_model"),
        arguments=untracked(pipeline.arguments, "train_model"),
        model=lambda wildcards, input: f"--model {input.model}" if input.model else "",
        initial=lambda wildcards, input: f"--initial {input.initial}" if input.initial else "",
    shell:
        "(PS4=; set -x; {params.command} --run-name {wildcards.run} --output {output} --data {input.data} {params.model} {params.initial}"
        " {params.options} {params.arguments}) 2>&1 | tee -i -a {log}"
