# Compares all runs in one table and on one page.


from functools import partial

from snaketrain.orchestration.unfinished import verdict

# for Snakemake's report, whose templates see nothing else; it is read there alone
config["verdict"] = partial(verdict, pipeline.manifest("compare_runs"))


localrules:
    compare_runs,


rule compare_runs:
    input:
        check_results("compare_runs"),
        *pipeline.of_finishing(lambda run: [pipeline.manifest(*each) for each in pipeline.evaluations(run)]),
        decisions=[pipeline.manifest(*decision) for decision in pipeline.decisions],
    output:
        manifest="results/comparison/manifest.json",
        page=in_report("results/comparison/index.html", "../report/comparison.rst", {"all runs": "compared on one page"}),
        curves=in_report("results/comparison/learning_curves.png", "../report/learning_curves.rst", {"all runs": "learning curves"}),
        table=in_report("results/comparison/runs.csv", "../report/runs.rst", {"all runs": "table of every figure and setting"}),
    log:
        "logs/compare_runs.log",
    params:
        code=pipeline.code("compare_runs"),
        logged=logged,
        settings=settings_file("compare_runs"),
        compare_runs=python("compare_runs"),
        runs=list(pipeline.runs),
        compared=untracked(lambda job: pipeline.finishing()),
        sets=untracked(lambda job: pipeline.on_further_sets(pipeline.finishing())),
    shell:
        "{params.logged} {log:q} {params.compare_runs} --output {output.manifest:q} --settings {params.settings:q} "
        "--runs-root results/runs --runs {params.compared:q} --sets {params.sets:q} --decisions {input.decisions:q}"
