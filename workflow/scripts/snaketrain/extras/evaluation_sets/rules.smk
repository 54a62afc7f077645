# Evaluates the selected checkpoint, or all that are kept, on a set of `evaluation_sets`. The manifest lists `<set>_predictions.csv`, and
# `checkpoints.json` of all checkpoints, which not every task and set has.
ON_SETS = pipeline.stages["evaluate_set"]


wildcard_constraints:
    evaluation_set="[^/.]+",


if ON_SETS.jobs:

    rule evaluate_set:
        input:
            check_results("evaluate_set"),
            training="results/runs/{run}/training/manifest.json",
            selection="results/runs/{run}/selection/manifest.json",
            data=pipeline.read("evaluate_set", "data"),
            set=pipeline.read("evaluate_set", "set"),
            model=varying(ON_SETS.jobs, pipeline.weights),
        output:
            manifest="results/runs/{run}/sets/{evaluation_set}/manifest.json",
            results="results/runs/{run}/sets/{evaluation_set}/{evaluation_set}_results.json",
            plots=in_report(
                "results/runs/{run}/sets/{evaluation_set}/{evaluation_set}_plots.png",
                "../../../../report/evaluation.rst",
                {"set": "{evaluation_set}"},
            ),
        log:
            "logs/evaluate_set/{run}/{evaluation_set}.log",
        threads: launching.threads_of(ON_SETS.computes)
        resources:
            **launching.resources_of(ON_SETS.computes, saves=False),
        params:
            evaluate=pipeline.section("evaluate_set", "evaluate"),
            set=pipeline.section("evaluate_set", "set"),
            code=pipeline.code("evaluate_set"),
            logged=logged,
            settings=settings_file("evaluate_set"),
            evaluate_set=launched("evaluate_set"),
            options=untracked(lambda job: evaluation_options(ON_SETS.compute(job))),
        shell:
            "{params.logged} {log:q} {params.evaluate_set} --output {output.manifest:q} --settings {params.settings:q} "
            "--run-name={wildcards.run:q} --training {input.training:q} --selection {input.selection:q} --data {input.data:q} "
            "--set {input.set:q} --set-name={wildcards.evaluation_set:q} --model {input.model:q} {params.options}"
