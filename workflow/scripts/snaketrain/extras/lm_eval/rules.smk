# Scores the selected language model on a task of the harness, as a further evaluation set `lm_eval.<task>`.
ON_TASKS = pipeline.stages["run_lm_eval"]


wildcard_constraints:
    lm_eval_set=r"lm_eval\.[^/]+",


if ON_TASKS.jobs:

    rule run_lm_eval:
        input:
            check_results("run_lm_eval"),
            training="results/runs/{run}/training/manifest.json",
            selection="results/runs/{run}/selection/manifest.json",
            data=varying(ON_TASKS.jobs, pipeline.data),
        output:
            manifest="results/runs/{run}/sets/{lm_eval_set}/manifest.json",
            results="results/runs/{run}/sets/{lm_eval_set}/{lm_eval_set}_results.json",
            predictions="results/runs/{run}/sets/{lm_eval_set}/{lm_eval_set}_predictions.csv",
            plots=in_report(
                "results/runs/{run}/sets/{lm_eval_set}/{lm_eval_set}_plots.png",
                "../../../../report/evaluation.rst",
                {"set": "{lm_eval_set}"},
            ),
        log:
            "logs/run_lm_eval/{run}/{lm_eval_set}.log",
        threads: launching.threads_of(ON_TASKS.computes)
        resources:
            **launching.resources_of(ON_TASKS.computes, saves=False),
        params:
            lm_eval=pipeline.section("run_lm_eval", "lm_eval"),
            code=pipeline.code("run_lm_eval"),
            logged=logged,
            settings=settings_file("run_lm_eval"),
            run_lm_eval=launched("run_lm_eval"),
            options=untracked(lambda job: options({"device": ON_TASKS.compute(job).required_device})),
        shell:
            "{params.logged} {log:q} {params.run_lm_eval} --output {output.manifest:q} --settings {params.settings:q} "
            "--run-name={wildcards.run:q} --training {input.training:q} --selection {input.selection:q} --data {input.data:q} {params.options}"
