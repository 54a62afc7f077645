# Compares all runs in one table and on one page.


rule compare_runs:
    input:
        check_results("compare_runs"),
        [pipeline.evaluations(run) for run in pipeline.searches.unsearched],
        *of_finalists(pipeline.evaluations),
        decisions=[pipeline.manifest("decide_rung", decision) for decision in pipeline.searches.decisions],
    output:
        manifest="results/comparison/manifest.json",
        page=report(
            "results/comparison/index.html",
            category="Comparison",
            labels={"all runs": "compared on one page"},
            caption="../report/comparison.rst",
        ),
        curves=report(
            "results/comparison/learning_curves.png",
            category="Comparison",
            labels={"all runs": "learning curves"},
            caption="../report/learning_curves.rst",
        ),
        table=report(
            "results/comparison/runs.csv",
            category="Comparison",
            labels={"all runs": "table of every figure and setting"},
            caption="../report/runs.rst",
        ),
    log:
        "logs/compare_runs.log",
    params:
        *pipeline.strings("compare_runs", ""),
        command=untracked(stage_command, pipeline, "compare_runs", executes),
        runs=list(pipeline.runs),
    shell:
        "{params.command} {log:q}"
