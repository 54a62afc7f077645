# Under SLURM, before the first job: what the cluster would refuse, and jobs that a killed workflow left behind. Then a
# thread tells why jobs wait or have ended, and asks for a range of nodes anew.
from snaketrain.slurm import checks, monitor
from snaketrain.slurm.client import Slurm, SlurmError

if workflow.is_main_process:
    checks.outlast_outages()


def tell(line):
    print(line, file=sys.stderr, flush=True)


def handed_to_jobs():
    """What of the command line the Snakemake inside of a job is given."""
    paths = [workflow.main_snakefile, os.getcwd(), *workflow.overwrite_configfiles]
    return [*paths, *(workflow.config_settings.config_args or [])]


def see_to_cluster():
    under_slurm = workflow.executor_plugin.name == "slurm"
    slurm, jobs = Slurm(), list(workflow.dag.needrun_jobs())
    computes = {job: pipeline.computes[job.wildcards.run] for job in jobs if job.rule.name in ("train_model", "evaluate_model")}
    try:
        if under_slurm:
            submitted = [job for job in jobs if not job.is_local]
            problems = launching.misquoted(handed_to_jobs(), not workflow.executor_settings.pass_command_as_script)
            problems = problems or checks.refusals(slurm, submitted, workflow.executor_settings)
        else:
            problems = [problem for compute in computes.values() if (problem := launching.out_of_reach(compute))]
        for job in computes:
            problem = launching.without_gpus(pipeline.runs[job.wildcards.run], workflow.executor_plugin.name, job.resources.get("gres"))
            problems += [f"{problem} (run {job.wildcards.run})"] if problem else []
        if problems:
            raise ConfigurationError(problems)
        if under_slurm:
            checks.end_left_over(slurm, submitted, tell)
            logs = Path(workflow.executor_settings.logdir or ".snakemake/slurm_logs")
            ranges = {checks.comment(job): compute for job, compute in computes.items() if len(compute.node_counts) > 1}
            monitor.JobMonitor(slurm, logs, tell, ranges).start()
    except (ConfigurationError, SlurmError) as error:
        raise WorkflowError(str(error)) from None
