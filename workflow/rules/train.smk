# Checkpoints, journal and logs are beside the manifest but not declared: Snakemake deletes the declared outputs of failed jobs.


rule train_model:
    input:
        check_results("train_model"),
        varying(pipeline.runs, lambda run: sum(pipeline.added("train_model", run).values(), [])),
        data=pipeline.read("train_model", "data"),
        model=pipeline.read("train_model", "model"),
        initial=pipeline.read("train_model", "initial"),
    output:
        "results/runs/{run}/training/manifest.json",
    log:
        "logs/train_model/{run}.log",
    group:
        pipeline.groups
    threads: launching.threads_of(pipeline.stages["train_model"].computes)
    resources:
        **launching.resources_of(pipeline.stages["train_model"].computes, saves=True),
    params:
        model=pipeline.section("train_model", "model"),
        train=pipeline.section("train_model", "train"),
        select=pipeline.section("train_model", "select"),
        code=pipeline.code("train_model"),
        logged=logged,
        settings=settings_file("train_model"),
        train_model=launched("train_model"),
        options=untracked(lambda job: training_options(pipeline.runs[job])),
        added=untracked(lambda job: options(pipeline.added("train_model", job))),
    shell:
        "{params.logged} -a {log:q} {params.train_model} --output {output:q} --settings {params.settings:q} "
        "--run-name={wildcards.run:q} "
        "--data {input.data:q} --model {input.model:q} --initial {input.initial:q} {params.options} {params.added}"
