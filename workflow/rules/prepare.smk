# Runs once for each distinct `data` section; runs with the same section share the result.


rule prepare_data:
    input:
        check_results("prepare_data"),
        varying(pipeline.datasets, lambda dataset: sum(pipeline.added("prepare_data", dataset).values(), [])),
        raw=pipeline.read("prepare_data", "raw"),
        tokenizer=pipeline.read("prepare_data", "tokenizer"),
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
        settings=settings_file("prepare_data"),
        prepare_data=python("prepare_data"),
        added=untracked(lambda job: options(pipeline.added("prepare_data", job))),
    shell:
        "{params.logged} {log:q} {params.prepare_data} --output {output:q} --settings {params.settings:q} "
        "--raw {input.raw:q} --tokenizer {input.tokenizer:q} --threads {threads} {params.added}"


# A test set in files of its own, or an evaluation set of an extra, is prepared on its own: another one does not touch the prepared training data.
if pipeline.stages["prepare_set"].jobs:

    rule prepare_set:
        input:
            check_results("prepare_set"),
            data=pipeline.read("prepare_set", "data"),
            files=pipeline.read("prepare_set", "files"),
        output:
            "results/sets/{prepared_set}/manifest.json",
        log:
            "logs/prepare_set/{prepared_set}.log",
        threads: pipeline.most_threads
        resources:
            mpi="",  # as in prepare_data
        params:
            data=pipeline.section("prepare_set", "data"),
            code=pipeline.code("prepare_set"),
            logged=logged,
            settings=settings_file("prepare_set"),
            prepare_set=python("prepare_set"),
            place=untracked(lambda job: pipeline.stages["prepare_set"].prepared[job].place),
        shell:
            "{params.logged} {log:q} {params.prepare_set} --output {output:q} --settings {params.settings:q} "
            "--place={params.place:q} --data {input.data:q} --files {input.files:q} --threads {threads}"
