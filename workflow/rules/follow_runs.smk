# Keeps MLflow up to date while the workflow runs, and once more at its end. Its failures never fail the workflow.
from snakemake_logger_plugin_snaketrain import console_of
from snaketrain.orchestration.unfinished import compare_finished, note_reasons, print_comparison
from snaketrain.orchestration.follower import FollowerProcess
from snaketrain.runtime.stages import remove_unused
from snaketrain.runtime.manifests import make_private_folder

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
    compared = any(job.rule.name == "compare_runs" for job in workflow.dag.jobs)
    launching.say_where_to_look(pipeline.tracking.uri, compared)


onerror:
    if console:
        console.stop()
    compare_finished(pipeline, workflow.dag, workflow.scheduler)
    FOLLOWER.finish()
