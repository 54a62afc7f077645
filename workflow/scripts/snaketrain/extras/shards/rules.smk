# With `data.shards`, several jobs prepare the files of a data set, which `prepare_data` joins.
from snaketrain.extras.shards.stages import group_of_shards, shards_in

shards = shards_in(pipeline)


if shards.counts:

    include: "shards.smk"
