# Prepares an evaluation set on its own, also the test set if it has files of its own: another one does not touch the prepared training data.


rule prepare_set:
    input:
        check_results("prepare_set"),
        data=varying(pipeline.sets.prepared, pipeline.data_of_set),
        files=varying(pipeline.sets.prepared, pipeline.files_of_set),
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
        prepare_set=python("prepare_set"),
        settings=settings_file("prepare_set"),
        set_name=untracked(lambda job: pipeline.sets.prepared[job].name),
    shell:
        "{params.logged} {log:q} {params.prepare_set} --output {output:q} --settings {params.settings:q} "
        "--set-name={params.set_name:q} --data {input.data:q} --files {input.files:q} --threads {threads}"
