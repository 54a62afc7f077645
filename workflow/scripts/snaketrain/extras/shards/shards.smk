# Where the settings list no classes, the labels in all shards are surveyed before they are prepared.


localrules:
    decide_classes,


wildcard_constraints:
    shard="[^/]+",


rule survey_shard:
    input:
        check_results("survey_shard"),
        raw=pipeline.read("survey_shard", "raw"),
    output:
        "results/data/{dataset}/surveys/{shard}/manifest.json",
    log:
        "logs/survey_shard/{dataset}/{shard}.log",
    group:
        group_of_shards(workflow, "survey_shard")
    resources:
        mpi="",  # as in prepare_data
    params:
        data=pipeline.section("survey_shard", "data"),
        code=pipeline.code("survey_shard"),
        logged=logged,
        settings=settings_file("survey_shard"),
        survey_shard=python("survey_shard"),
    shell:
        "{params.logged} {log:q} {params.survey_shard} --output {output:q} --settings {params.settings:q} "
        "--shard {wildcards.shard:q} --raw {input.raw:q}"


rule decide_classes:
    input:
        check_results("decide_classes"),
        surveys=pipeline.read("decide_classes"),
    output:
        "results/data/{dataset}/classes/manifest.json",
    log:
        "logs/decide_classes/{dataset}.log",
    params:
        data=pipeline.section("decide_classes", "data"),
        code=pipeline.code("decide_classes"),
        logged=logged,
        settings=settings_file("decide_classes"),
        decide_classes=python("decide_classes"),
    shell:
        "{params.logged} {log:q} {params.decide_classes} --output {output:q} --settings {params.settings:q} " "--surveys {input.surveys:q}"


rule prepare_shard:
    input:
        check_results("prepare_shard"),
        raw=pipeline.read("prepare_shard", "raw"),
        tokenizer=pipeline.read("prepare_shard", "tokenizer"),
        classes=pipeline.read("prepare_shard", "classes"),
    output:
        "results/data/{dataset}/shards/{shard}/manifest.json",
    log:
        "logs/prepare_shard/{dataset}/{shard}.log",
    group:
        group_of_shards(workflow, "prepare_shard")
    resources:
        mpi="",  # as in prepare_data
    params:
        data=pipeline.section("prepare_shard", "data"),
        code=pipeline.code("prepare_shard"),
        logged=logged,
        settings=settings_file("prepare_shard"),
        prepare_shard=python("prepare_shard"),
    shell:
        "{params.logged} {log:q} {params.prepare_shard} --output {output:q} --settings {params.settings:q} "
        "--shard {wildcards.shard:q} --raw {input.raw:q} --tokenizer {input.tokenizer:q} --classes {input.classes:q} --threads {threads}"
