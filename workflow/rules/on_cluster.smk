# Before the first job: check what the cluster would refuse, and end jobs that a killed workflow left behind. While jobs run, a
# thread reports why they wait or have ended, and requests a range of nodes again.
from snaketrain.slurm import checks, monitor
from snaketrain.slurm.client import Slurm, SlurmError

if workflow.is_main_process:
    checks.use_steady_executor()


def print_to_stderr(line):
    print(line, file=sys.stderr, flush=True)


def passed_to_jobs():
    """The parts of the command line that are passed on to the Snakemake in each job."""
    paths = [workflow.main_snakefile, os.getcwd(), *workflow.overwrite_configfiles]
    return [*paths, *(workflow.config_settings.config_args or [])]


def check_cluster():
    under_slurm = workflow.executor_plugin.name == "slurm"
    slurm, jobs = Slurm(), list(workflow.dag.needrun_jobs())
    computes = {job: pipeline.computes[job.wildcards.run] for job in jobs if job.rule.name in ("train_model", "evaluate_model")}
    try:
        if under_slurm:
            submitted = [job for job in jobs if not job.is_local]
            problems = launching.misquoted(passed_to_jobs(), not workflow.executor_settings.pass_command_as_script)
            problems = problems or checks.refusals(slurm, submitted, workflow.executor_settings)
        else:
            problems = [problem for compute in computes.values() if (problem := launching.out_of_reach(compute))]
        for job in computes:
            problem = launching.without_gpus(pipeline.runs[job.wildcards.run], workflow.executor_plugin.name, job.resources.get("gres"))
            problems += [f"{problem} (run {job.wildcards.run})"] if problem else []
        if problems:
            raise ConfigurationError(problems)
        if under_slurm:
            checks.end_left_over(slurm, submitted, print_to_stderr)
            logs = Path(workflow.executor_settings.logdir or ".snakemake/slurm_logs")
            ranges = {checks.comment(job): compute for job, compute in computes.items() if compute.counts.varies}
            folders = {checks.comment(job): Path(job.output[0]).parent for job in computes}
            monitor.JobMonitor(slurm, logs, print_to_stderr, ranges, folders).start()
    except (ConfigurationError, SlurmError) as error:
        raise WorkflowError(str(error)) from None
