# Selects a checkpoint by the metrics stored in it; changing `select` does not train again. A local rule: it copies one checkpoint
# and computes nothing.


rule select_checkpoint:
    input:
        check_results("select_checkpoint"),
        training="results/runs/{run}/training/manifest.json",
        data=varying(pipeline.runs, pipeline.data),
    output:
        manifest="results/runs/{run}/selection/manifest.json",
        selection="results/runs/{run}/selection/selection.json",
    log:
        "logs/select_checkpoint/{run}.log",
    group:
        pipeline.groups
    params:
        *pipeline.tracked("select_checkpoint", pipeline.runs),
        command=untracked(stage_command, pipeline, "select_checkpoint", executes),
    shell:
        "{params.command} {log:q}"
