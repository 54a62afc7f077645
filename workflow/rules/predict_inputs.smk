# Predicts the unlabelled data of `predict` with the selected model: for each, `<name>.parquet` and `<name>.csv`, which the manifest lists.


rule predict_inputs:
    input:
        check_results("predict_inputs"),
        selection="results/runs/{run}/selection/manifest.json",
        inputs=varying(pipeline.predicting, pipeline.unlabelled),
        model=varying(pipeline.predicting, pipeline.weights),
    output:
        "results/runs/{run}/predictions/manifest.json",
    log:
        "logs/predict_inputs/{run}.log",
    threads: launching.threads_of(pipeline.computes_of("predict_inputs"))
    resources:
        **launching.resources_of(pipeline.computes_of("predict_inputs"), saves=False),
    params:
        *pipeline.tracked("predict_inputs"),
        command=untracked(stage_command, pipeline, "predict_inputs", executes),
    shell:
        "{params.command} {log:q}"
