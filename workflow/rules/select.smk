# Selects a checkpoint by the metrics stored in it; changing `select` does not train again. A local rule, unless
# checkpoints are sharded or averaged, adapters are merged, or a run is evaluated in its training's job: with `group` Snakemake has no local rules.


if pipeline.selection_is_light:

    localrules:
        select_checkpoint,


rule select_checkpoint:
    input:
        check_results("select_checkpoint"),
        training="results/runs/{run}/training/manifest.json",
        data=varying(pipeline.runs, pipeline.data),
        model=pipeline.read("select_checkpoint", "model"),
    output:
        manifest="results/runs/{run}/selection/manifest.json",
        selection="results/runs/{run}/selection/selection.json",
    log:
        "logs/select_checkpoint/{run}.log",
    group:
        pipeline.groups
    resources:
        mem_mb=varying(pipeline.runs, lambda run: pipeline.computes[run].memory_mb),
        mpi=varying(pipeline.runs, lambda run: None if pipeline.is_in_group(run) else ""),  # as in prepare_data; in a group, the training's
    params:
        select=pipeline.section("select_checkpoint", "select"),
        code=pipeline.code("select_checkpoint"),
        logged=logged,
        settings=settings_file("select_checkpoint"),
        select_checkpoint=python("select_checkpoint"),
    shell:
        "{params.logged} {log:q} {params.select_checkpoint} --output {output.manifest:q} --settings {params.settings:q} "
        "--training {input.training:q} --data {input.data:q} --model {input.model:q}"
