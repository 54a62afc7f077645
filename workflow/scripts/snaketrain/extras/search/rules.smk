# Input functions that depend on what a search has decided. Snakemake plans again when a decision has been made, so a dry run shows
# the jobs up to the next one.
import warnings
from functools import partial

from snaketrain.extras.search.stages import searches_of

searches = searches_of(pipeline)
# Snakemake 9 asks for the size of inputs that are not known yet, and leaves the answer
warnings.filterwarnings("ignore", message="coroutine 'InputFiles._predicated_size_files")


def survivors(decision):
    """The runs that a decision lets continue."""
    search, _, rung = decision.partition("/")
    checkpoints.decide_rung.get(search=search, rung=rung)
    return searches.survivors(decision)


def contenders(wildcards):
    """The rungs that a decision compares."""
    decision = job_name(wildcards)
    pipeline.stages["decide_rung"].check(decision)
    if before := searches.decision_before(decision):
        survivors(before)
    return [pipeline.manifest("train_rung", rung) for rung in searches.contenders(decision)]


def rung_before(name):
    """Two rungs of a run are trained in one folder, one after the other."""
    return [ancient(pipeline.manifest("train_rung", rung)) for rung in searches.rungs_before(name)]


pipeline.once_decided += [partial(survivors, searches.last_of(search)) for search in searches.searches]


if searches.searches:

    include: "search.smk"
