# Predicts the unlabelled data of `predict` with the selected model: for each, `<name>.parquet` and `<name>.csv`, which the manifest lists.
PREDICTING = pipeline.stages["predict_inputs"]


if PREDICTING.jobs:

    rule predict_inputs:
        input:
            check_results("predict_inputs"),
            selection="results/runs/{run}/selection/manifest.json",
            inputs=varying(PREDICTING.jobs, PREDICTING.fetched),
            model=varying(PREDICTING.jobs, pipeline.weights),
        output:
            "results/runs/{run}/predictions/manifest.json",
        log:
            "logs/predict_inputs/{run}.log",
        threads: launching.threads_of(pipeline.stages["predict_inputs"].computes)
        resources:
            **launching.resources_of(pipeline.stages["predict_inputs"].computes, saves=False),
        params:
            predict=pipeline.section("predict_inputs", "predict"),
            code=pipeline.code("predict_inputs"),
            logged=logged,
            settings=settings_file("predict_inputs"),
            predict_inputs=launched("predict_inputs"),
            options=untracked(
                lambda job: inference_options(pipeline.stages["predict_inputs"].compute(job), pipeline.runs[job].evaluate.batch_size)
            ),
        shell:
            "{params.logged} {log:q} {params.predict_inputs} --output {output:q} --settings {params.settings:q} "
            "--selection {input.selection:q} --inputs {input.inputs:q} --model {input.model:q} --threads {threads} {params.options}"
