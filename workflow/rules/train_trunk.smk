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
        command=untracked(stage_command, pipeline, "train_trunk", executes),
    shell:
        "{params.command} -a {log:q}"
