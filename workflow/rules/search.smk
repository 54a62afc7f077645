# Searches: the runs of a sweep train up to a rung, a decision names those that continue, and so on. `train_model`, which is only asked for
# once the last decision is made, trains the rest to their end in the same folders.


rule train_rung:
    input:
        check_results("train_rung"),
        varying(pipeline.searches.rungs, rung_before),
        data=varying(pipeline.searches.rungs, pipeline.data),
        model=varying(pipeline.searches.rungs, pipeline.weights),
        initial=varying(pipeline.searches.rungs, pipeline.initial_weights),
    output:
        "results/runs/{run}/rungs/{rung}/manifest.json",
    log:
        "logs/train_rung/{run}/{rung}.log",
    threads: launching.threads_of(pipeline.computes_of("train_rung"))
    resources:
        **launching.resources_of(pipeline.computes_of("train_rung"), saves=True),
    params:
        *pipeline.tracked("train_rung"),
        command=untracked(stage_command, pipeline, "train_rung", executes),
    shell:
        "{params.command} -a {log:q}"


checkpoint decide_rung:
    input:
        check_results("decide_rung"),
        contenders=contenders,
    output:
        "results/searches/{search}/{rung}/manifest.json",
    log:
        "logs/decide_rung/{search}/{rung}.log",
    params:
        *pipeline.tracked("decide_rung"),
        command=untracked(stage_command, pipeline, "decide_rung", executes),
    shell:
        "{params.command} {log:q}"
