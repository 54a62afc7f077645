# Before the first job: check what the cluster would refuse, and adopt jobs that a killed workflow left behind, or end them. While jobs
# run, a thread reports why they wait or have ended, and requests a range of nodes again.
from snaketrain.orchestration.pipeline import ranges_and_folders
from snaketrain.orchestration.stages import ModelStage
from snaketrain.orchestration.launching import surroundings_problems
from snaketrain.runtime.manifests import make_private_folder
from snaketrain.runtime.file_systems import CannotStage, pack_environment
from snaketrain.slurm import monitor
from snaketrain.slurm.client import Slurm, SlurmError
from snaketrain.slurm.steady_executor import keep_slurm_conf, use_steady_executor
from snaketrain.slurm.submissions import LeftOver, StillFollowed, Submissions

keep_slurm_conf()


def print_to_stderr(line):
    print(line, file=sys.stderr, flush=True)


LEFT_OVER = LeftOver(Slurm(), Submissions(), print_to_stderr)
if workflow.is_main_process:
    use_steady_executor(LEFT_OVER)


def passed_to_jobs():
    """The parts of the command line that are passed on to the Snakemake in each job."""
    paths = [workflow.main_snakefile, os.getcwd(), *workflow.overwrite_configfiles]
    return [*paths, *(workflow.config_settings.config_args or [])]


def submission_of(job):
    """The job, or the group that it is submitted in."""
    return workflow.dag.get_job_group(job) or job


def jobs_in(submission):
    return submission.jobs if submission.is_group() else [submission]


def reads_what_is_there(submission):
    jobs = jobs_in(submission)
    return not any(workflow.dag.needrun(before) for job in jobs for before in workflow.dag.dependencies[job] if before not in jobs)


def is_done(submission):
    return all(
        not workflow.dag.reason(job).forced and repairs.is_done(job.rule.name, job_name(job.wildcards)) for job in jobs_in(submission)
    )


def check_cluster():
    under_slurm = workflow.executor_plugin.name == "slurm"
    slurm, jobs = LEFT_OVER.slurm, list(workflow.dag.needrun_jobs())
    of_jobs = {job: stage for job in jobs if isinstance(stage := pipeline.stages.get(job.rule.name), ModelStage)}
    computes = {job: stage.compute(job_name(job.wildcards)) for job, stage in of_jobs.items()}
    try:
        if under_slurm:
            submitted = list(dict.fromkeys(submission_of(job) for job in jobs if not job.is_local))
            problems = launching.misquoted(passed_to_jobs(), not workflow.executor_settings.pass_command_as_script)
            problems = problems or monitor.refusals(slurm, submitted, workflow.executor_settings)
        else:
            problems = [problem for compute in computes.values() if (problem := launching.out_of_reach(compute))]
        for job, stage in of_jobs.items():
            run = stage.run(job_name(job.wildcards))
            strategy, gres = pipeline.runs[run].train.strategy.use, job.resources.get("gres")
            problem = launching.without_gpus(strategy, computes[job], workflow.executor_plugin.name, gres)
            problems += [f"{problem} (run {run})"] if problem else []
        for compute in computes.values():
            problems += surroundings_problems(compute, under_slurm)
        if problems:
            raise ConfigurationError(problems)
        if any(compute.stage_environment for compute in computes.values()):
            pack_environment(print_to_stderr)
        if under_slurm:
            LEFT_OVER.settle(submitted, workflow.executor_settings, reads_what_is_there, is_done)
            logs = Path(workflow.executor_settings.logdir or ".snakemake/slurm_logs")
            make_private_folder(logs)
            monitor.JobMonitor(slurm, logs, print_to_stderr, *ranges_and_folders(pipeline)).start()
    except (CannotStage, ConfigurationError, SlurmError, StillFollowed) as error:
        raise WorkflowError(str(error)) from None
