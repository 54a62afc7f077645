# Averages weights of runs while the development metric improves. `files/` has them, and the training of the soup's run begins with them.
SOUPS = pipeline.stages["make_soup"]

if SOUPS.jobs:
    if undecided := pipeline.undecided & {run for members in SOUPS.soups.values() for run in members}:
        raise WorkflowError(
            f"soups: a search or a verdict decides whether these runs are trained to their end: {', '.join(sorted(undecided))}. Name other runs."
        )

    rule make_soup:
        input:
            check_results("make_soup"),
            data=pipeline.read("make_soup", "data"),
            evaluations=varying(SOUPS.jobs, lambda soup: [pipeline.as_input("evaluate_model", run) for run in SOUPS.soups[soup]]),
            model=varying(SOUPS.jobs, pipeline.weights),
        output:
            "results/soups/{run}/manifest.json",
        log:
            "logs/make_soup/{run}.log",
        threads: launching.threads_of(SOUPS.computes)
        resources:
            **launching.resources_of(SOUPS.computes, saves=False),
        params:
            evaluate=pipeline.section("make_soup", "evaluate"),
            code=pipeline.code("make_soup"),
            logged=logged,
            settings=settings_file("make_soup"),
            make_soup=launched("make_soup"),
            options=untracked(lambda job: evaluation_options(SOUPS.compute(job))),
        shell:
            "{params.logged} {log:q} {params.make_soup} --output {output:q} --settings {params.settings:q} --run-name={wildcards.run:q} "
            "--data {input.data:q} --evaluations {input.evaluations:q} --model {input.model:q} {params.options}"
