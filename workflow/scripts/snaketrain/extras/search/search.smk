# The runs of a searched sweep train up to a rung, a decision names those that continue, and so on. `train_model`, which is only asked for
# once the last decision is made, trains the rest to their end in the same folders.


localrules:
    decide_rung,


rule train_rung:
    input:
        check_results("train_rung"),
        varying(searches.rungs, rung_before),
        data=pipeline.read("train_rung", "data"),
        model=pipeline.read("train_rung", "model"),
        initial=pipeline.read("train_rung", "initial"),
    output:
        "results/runs/{run}/rungs/{rung}/manifest.json",
    log:
        "logs/train_rung/{run}/{rung}.log",
    wildcard_constraints:
        rung="[1-9][0-9]*",
    threads: launching.threads_of(pipeline.stages["train_rung"].computes)
    resources:
        **launching.resources_of(pipeline.stages["train_rung"].computes, saves=True),
    params:
        model=pipeline.section("train_rung", "model"),
        train=pipeline.section("train_rung", "train"),
        select=pipeline.section("train_rung", "select"),
        rung=pipeline.section("train_rung", "rung"),
        code=pipeline.code("train_rung"),
        logged=logged,
        settings=settings_file("train_rung"),
        train_rung=launched("train_rung"),
        training_settings=settings_file("train_model", run_of),
        share=untracked(searches.share),
        options=untracked(lambda job: training_options(pipeline.runs[run_of(job)])),
    shell:
        "{params.logged} -a {log:q} {params.train_rung} --rung-output {output:q} --rung-settings {params.settings:q} "
        "--rung-name={wildcards.run:q}/{wildcards.rung} --share {params.share} "
        "--output results/runs/{wildcards.run:q}/training/manifest.json --settings {params.training_settings:q} --run-name={wildcards.run:q} "
        "--data {input.data:q} --model {input.model:q} --initial {input.initial:q} {params.options}"


checkpoint decide_rung:
    input:
        check_results("decide_rung"),
        contenders=contenders,
    output:
        "results/searches/{search}/{rung}/manifest.json",
    log:
        "logs/decide_rung/{search}/{rung}.log",
    wildcard_constraints:
        search="[^/]+",
        rung="[1-9][0-9]*",
    params:
        search=pipeline.section("decide_rung", "search"),
        select=pipeline.section("decide_rung", "select"),
        code=pipeline.code("decide_rung"),
        logged=logged,
        settings=settings_file("decide_rung"),
        decide_rung=python("decide_rung"),
    shell:
        "{params.logged} {log:q} {params.decide_rung} --output {output:q} --settings {params.settings:q} "
        "--decision {wildcards.search:q}/{wildcards.rung} --contenders {input.contenders:q}"
