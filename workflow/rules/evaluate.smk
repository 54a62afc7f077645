# Evaluates the selected checkpoint on the development and test set. A task with one prediction per example also writes
# `<split>_predictions.csv`, which is not declared because not every task does.


rule evaluate_model:
    input:
        check_results("evaluate_model"),
        training="results/runs/{run}/training/manifest.json",
        selection="results/runs/{run}/selection/manifest.json",
        data=pipeline.read("evaluate_model", "data"),
        set=pipeline.read("evaluate_model", "set"),
        model=varying(pipeline.runs, pipeline.weights),
    output:
        manifest="results/runs/{run}/evaluation/manifest.json",
        results=expand("results/runs/{{run}}/evaluation/{split}_results.json", split=["dev", "test"]),
        dev_plots=in_report("results/runs/{run}/evaluation/dev_plots.png", "../report/evaluation.rst", {"set": "development"}),
        test_plots=in_report("results/runs/{run}/evaluation/test_plots.png", "../report/evaluation.rst", {"set": "test"}),
    log:
        "logs/evaluate_model/{run}.log",
    group:
        pipeline.groups
    threads: launching.threads_of(pipeline.stages["evaluate_model"].computes)
    resources:
        **launching.resources_of(pipeline.stages["evaluate_model"].computes, saves=False),
    params:
        evaluate=pipeline.section("evaluate_model", "evaluate"),
        code=pipeline.code("evaluate_model"),
        logged=logged,
        settings=settings_file("evaluate_model"),
        evaluate_model=launched("evaluate_model"),
        options=untracked(lambda job: evaluation_options(pipeline.stages["evaluate_model"].compute(job))),
    shell:
        "{params.logged} {log:q} {params.evaluate_model} --output {output.manifest:q} --settings {params.settings:q} "
        "--run-name={wildcards.run:q} --training {input.training:q} --selection {input.selection:q} --data {input.data:q} "
        "--set {input.set:q} --model {input.model:q} {params.options}"
