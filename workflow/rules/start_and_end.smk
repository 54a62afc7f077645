# What is done before the first job, and after the last one.
from snakemake_logger_plugin_snaketrain import console_of
from snaketrain.orchestration import executor_hooks
from snaketrain.orchestration.follower import FollowerProcess
from snaketrain.orchestration.pipeline import ranges_and_folders
from snaketrain.orchestration.stage import ModelStage
from snaketrain.orchestration.unfinished import compare_finished, note_reasons, print_comparison
from snaketrain.runtime.manifests import make_private_folder
from snaketrain.runtime.stages import remove_unused
from snaketrain.slurm.client import keep_slurm_conf

# Before the first job: what could not run is refused. Under SLURM the executor (snakemake_executor_plugin_slurm_steady) has that done, with what SLURM
# would refuse; then it adopts jobs that a killed workflow left behind, or ends them.

keep_slurm_conf()


def names_environment(rule):
    return rule.container_img or rule.conda_env or rule.env_modules


def check_jobs(refused=()):
    executor, computes = workflow.executor_plugin.name, []
    problems = [launching.OF_PLUGIN] if executor == "slurm" else list(refused)
    if workflow.deployment_settings.deployment_method and not any(map(names_environment, workflow.rules)):
        problems.append(launching.NO_ENVIRONMENTS)
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
        launching.before_first_job(computes, executor)
    except (OSError, ConfigurationError) as error:
        raise WorkflowError(str(error)) from None


def has_results(job):
    return repairs.is_done(job.rule.name, job_name(job.wildcards))


if workflow.is_main_process:
    executor_hooks.register(executor_hooks.Hooks(check_jobs, has_results, watched=lambda: ranges_and_folders(pipeline)))


# The follower keeps MLflow up to date while the workflow runs, and once more at its end. Its failures never fail the workflow.
FOLLOWER = FollowerProcess(Path("results"), pipeline.tracking)
console = console_of(workflow.logger_manager)


onstart:
    make_private_folder("logs")
    if workflow.executor_plugin.name != launching.SLURM:  # that executor has had it done already
        check_jobs()
    remove_unused()
    note_reasons(workflow.dag.needrun_jobs(), workflow.dag.reason, Path("results"))
    FOLLOWER.start()
    if console:
        console.start(workflow)


onsuccess:
    if console:
        console.stop()
    FOLLOWER.finish()
    if any(job.rule.name == "compare_runs" for job in workflow.dag.finished_jobs):
        print_comparison()
    # otherwise the page may be an earlier one's, as after `--until`
    if any(job.rule.name == "compare_runs" for job in workflow.dag.jobs):
        print(f"Compare the runs: {Path('results/comparison/index.html').resolve()}", file=sys.stderr)


onerror:
    if console:
        console.stop()
    compare_finished(pipeline, workflow.dag, workflow.scheduler)
    FOLLOWER.finish()
