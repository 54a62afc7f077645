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
        *pipeline.tracked("prepare_set"),
        command=untracked(stage_command, pipeline, "prepare_set", executes),
    shell:
        "{params.command} {log:q}"
