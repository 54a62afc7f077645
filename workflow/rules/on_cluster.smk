# Before the first job: what could not run is refused. Under SLURM the executor (snakemake_executor_plugin_slurm_steady) has that done, with what SLURM
# would refuse; then it adopts jobs that a killed workflow left behind, or ends them.
from snaketrain.orchestration.pipeline import ranges_and_folders
from snaketrain.orchestration.stage import ModelStage
from snaketrain.orchestration import executor_hooks
from snaketrain.slurm.client import keep_slurm_conf

keep_slurm_conf()


def check_jobs(refused=()):
    executor, computes = workflow.executor_plugin.name, []
    problems = [launching.OF_PLUGIN] if executor == "slurm" else list(refused)
    for job in workflow.dag.needrun_jobs():
        if isinstance(stage := pipeline.stages.get(job.rule.name), ModelStage):
            name = job_name(job.wildcards)
            run, compute = stage.run(name), stage.compute(name)
            strategy = pipeline.runs[run].train.strategy.use
            problems += launching.unable(run, strategy, compute, executor, job.resources.get("gres"))
            computes.append(compute)
    try:
        if problems:
            raise ConfigurationError(problems)
        launching.before_first_job(computes)
    except (OSError, ConfigurationError) as error:
        raise WorkflowError(str(error)) from None


def has_results(job):
    return repairs.is_done(job.rule.name, job_name(job.wildcards))


if workflow.is_main_process:
    executor_hooks.register(executor_hooks.Hooks(check_jobs, has_results, watched=lambda: ranges_and_folders(pipeline)))
