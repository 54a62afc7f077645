# Selects a checkpoint by the metrics stored in it; changing `select` does not train again. A local rule, unless
# checkpoints are sharded or averaged, or adapters are merged.


rule select_checkpoint:
    input:
        check_results("select_checkpoint"),
        training="results/runs/{run}/training/manifest.json",
        data=varying(pipeline.runs, pipeline.data),
        model=varying(pipeline.runs, pipeline.weights_to_merge),
    output:
        manifest="results/runs/{run}/selection/manifest.json",
        selection="results/runs/{run}/selection/selection.json",
    log:
        "logs/select_checkpoint/{run}.log",
    group:
        pipeline.groups
    resources:
        mem_mb=varying(pipeline.runs, lambda run: pipeline.computes[run].memory_mb),
    params:
        *pipeline.tracked("select_checkpoint"),
        command=untracked(stage_command, pipeline, "select_checkpoint", executes),
    shell:
        "{params.command} {log:q}"
