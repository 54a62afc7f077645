# The first steps of several runs, which continue from its checkpoints. Never temporary: a run that is added to a sweep must repeat
# neither the trunk nor the runs that continued it.


rule train_trunk:
    input:
        check_results("train_trunk"),
        data=varying(pipeline.trunks.known, pipeline.of_trunk(pipeline.data)),
        model=varying(pipeline.trunks.known, pipeline.of_trunk(pipeline.weights)),
        initial=varying(pipeline.trunks.known, pipeline.of_trunk(pipeline.initial_weights)),
        trunk=varying(pipeline.trunks.known, pipeline.parent_trunk),
    output:
        "results/trunks/{trunk}/training/manifest.json",
    log:
        "logs/train_trunk/{trunk}.log",
    wildcard_constraints:
        trunk="|".join(pipeline.trunks.known) or "none",
    threads: launching.threads_of(pipeline.computes_of("train_trunk"))
    resources:
        **launching.resources_of(pipeline.computes_of("train_trunk"), saves=True),
    params:
        *pipeline.tracked("train_trunk"),
        logged=logged,
        train_model=launched("train_trunk"),
        settings=settings_file("train_trunk"),
        options=untracked(
            lambda job: training_options(pipeline.runs[pipeline.trunks.known[job].run], pipeline.trunks.known[job].branch_steps)
        ),
    shell:
        "{params.logged} -a {log:q} {params.train_model} --output {output:q} --settings {params.settings:q} "
        "--run-name={wildcards.trunk:q} "
        "--data {input.data:q} --model {input.model:q} --initial {input.initial:q} --trunk {input.trunk:q} {params.options}"
