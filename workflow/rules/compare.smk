# Compares all runs in one table and on one page.


def of_all_runs(file, what, caption):
    return report(file, category="Comparison", labels={"all runs": what}, caption=caption)


localrules:
    compare_runs,


rule compare_runs:
    input:
        check_results("compare_runs"),
        *pipeline.of_finishing(pipeline.evaluations),
        decisions=[pipeline.manifest(*decision) for decision in pipeline.decisions],
    output:
        manifest="results/comparison/manifest.json",
        page=of_all_runs("results/comparison/index.html", "compared on one page", "../report/comparison.rst"),
        curves=of_all_runs("results/comparison/learning_curves.png", "learning curves", "../report/learning_curves.rst"),
        table=of_all_runs("results/comparison/runs.csv", "table of every figure and setting", "../report/runs.rst"),
    log:
        "logs/compare_runs.log",
    params:
        **shared("compare_runs"),
        compare_runs=python("compare_runs"),
        runs=list(pipeline.runs),
        compared=untracked(lambda job: pipeline.finishing()),
        sets=untracked(lambda job: pipeline.evaluations_of(pipeline.finishing())),
    shell:
        "{params.logged} {log:q} {params.compare_runs} --output {output.manifest:q} --settings {params.settings:q} "
        "--runs-root results/runs --runs {params.compared:q} --sets {params.sets:q} --decisions {input.decisions:q}"
