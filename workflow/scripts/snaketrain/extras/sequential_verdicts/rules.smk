# Looks at two runs, each with some seeds, and decides whether more seeds are trained. Snakemake plans again after each look.
from functools import partial

seeds = pipeline.stages["decide_seeds"]


def needed_by(verdict):
    """The runs of a verdict, once it is decided."""
    for job in seeds.looks_of(verdict):
        checkpoints.decide_seeds.get(verdict=verdict, look=job.rpartition("/")[2])
        if not seeds.continues(job):
            break
    return [run for run in seeds.needed(verdict) if run in seeds.runs]


def looked_at(wildcards):
    """The evaluations that a look compares, once the look before has asked for them."""
    job = job_name(wildcards)
    seeds.check(job)
    for before in seeds.before(job):
        checkpoints.decide_seeds.get(verdict=wildcards.verdict, look=before.rpartition("/")[2])
    return [pipeline.manifest(*each) for each in seeds.reads(job).values()]


if seeds.verdicts:
    pipeline.once_decided += [partial(needed_by, verdict) for verdict in seeds.verdicts]

    localrules:
        decide_seeds,

    checkpoint decide_seeds:
        input:
            check_results("decide_seeds"),
            manifests=looked_at,
        output:
            "results/verdicts/{verdict}/{look}/manifest.json",
        log:
            "logs/decide_seeds/{verdict}/{look}.log",
        wildcard_constraints:
            verdict="[^/]+",
            look="[1-9][0-9]*",
        params:
            verdict=pipeline.section("decide_seeds", "verdict"),
            code=pipeline.code("decide_seeds"),
            logged=logged,
            settings=settings_file("decide_seeds"),
            decide_seeds=python("decide_seeds"),
        shell:
            "{params.logged} {log:q} {params.decide_seeds} --output {output:q} --settings {params.settings:q} "
            "--decision {wildcards.verdict:q}/{wildcards.look} --manifests {input.manifests:q}"
