# Runs once for each distinct `data` section; runs with the same section share the result.


rule prepare_data:
    input:
        check_results("prepare_data"),
        varying(pipeline.datasets, lambda dataset: sum(pipeline.added("prepare_data", dataset).values(), [])),
        raw=varying(pipeline.datasets, pipeline.raw),
        tokenizer=varying(pipeline.datasets, pipeline.tokenizer),
    output:
        "results/data/{dataset}/manifest.json",
    log:
        "logs/prepare_data/{dataset}.log",
    threads: pipeline.most_threads
    resources:
        mpi="",  # else the SLURM plugin starts it by an srun that does not see SLURM_CONF
    params:
        data=pipeline.section("prepare_data", "data"),
        code=pipeline.code("prepare_data"),
        logged=logged,
        prepare_data=python("prepare_data"),
        settings=settings_file("prepare_data"),
        added=untracked(lambda job: options(pipeline.added("prepare_data", job))),
    shell:
        "{params.logged} {log:q} {params.prepare_data} --output {output:q} --settings {params.settings:q} "
        "--raw {input.raw:q} --tokenizer {input.tokenizer:q} --threads {threads} {params.added}"
