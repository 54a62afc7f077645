# The first steps of several runs, which continue from its checkpoints. Never temporary: a run that is added to a sweep must repeat
# neither the trunk nor the runs that continued it.
trunks = pipeline.stages["train_trunk"]


if trunks.jobs:

    rule train_trunk:
        input:
            check_results("train_trunk"),
            data=pipeline.read("train_trunk", "data"),
            model=pipeline.read("train_trunk", "model"),
            initial=pipeline.read("train_trunk", "initial"),
            trunk=varying(trunks.jobs, trunks.parent),
        output:
            "results/trunks/{trunk}/training/manifest.json",
        log:
            "logs/train_trunk/{trunk}.log",
        wildcard_constraints:
            trunk="|".join(trunks.jobs),
        threads: launching.threads_of(trunks.computes)
        resources:
            **launching.resources_of(trunks.computes, saves=True),
        params:
            model=pipeline.section("train_trunk", "model"),
            train=pipeline.section("train_trunk", "train"),
            select=pipeline.section("train_trunk", "select"),
            trunk=pipeline.section("train_trunk", "trunk"),
            code=pipeline.code("train_trunk"),
            logged=logged,
            settings=settings_file("train_trunk"),
            train_model=launched("train_trunk"),
            options=untracked(trunks.options),
        shell:
            "{params.logged} -a {log:q} {params.train_model} --output {output:q} --settings {params.settings:q} "
            "--run-name={wildcards.trunk:q} "
            "--data {input.data:q} --model {input.model:q} --initial {input.initial:q} --trunk {input.trunk:q} {params.options}"
