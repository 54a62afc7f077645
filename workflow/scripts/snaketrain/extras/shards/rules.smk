# With `data.shards`, several jobs prepare the files of a data set, which `prepare_data` joins.
from snaketrain.extras.shards.stages import group_of_shards

if pipeline.stages["prepare_shard"].shards.counts:

    rule prepare_shard:
        input:
            check_results("prepare_shard"),
            raw=pipeline.read("prepare_shard", "raw"),
            tokenizer=pipeline.read("prepare_shard", "tokenizer"),
        output:
            "results/data/{dataset}/shards/{shard}/manifest.json",
        log:
            "logs/prepare_shard/{dataset}/{shard}.log",
        wildcard_constraints:
            shard="[^/]+",
        group:
            group_of_shards(workflow)
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
            "--shard {wildcards.shard:q} --raw {input.raw:q} --tokenizer {input.tokenizer:q} --threads {threads}"
