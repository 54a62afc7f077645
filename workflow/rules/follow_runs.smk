# Brings MLflow up to date while the workflow runs, and once more at its end. It never makes the workflow fail.
import subprocess

from snaketrain.workflow.reasons import note_reasons

FOLLOWERS = []


def follow(*options):
    where = ["--uri", pipeline.tracking.uri] if pipeline.tracking.uri else []
    models = [] if pipeline.tracking.register_models else ["--no-models"]
    return subprocess.Popen([sys.executable, f"{SCRIPTS}/follow_runs.py", "--results", "results", *where, *models, *options])


def finish_following():
    for follower in FOLLOWERS:
        follower.terminate()  # it has a last look at everything and ends
        follower.wait()
    if any(follower.returncode for follower in FOLLOWERS):  # it had not even begun
        follow("--once").wait()


onstart:
    see_to_cluster()
    note_reasons(workflow.dag.needrun_jobs(), workflow.dag.reason, Path("results"))
    FOLLOWERS.append(follow("--while-pid", str(os.getpid())))


onsuccess:
    finish_following()
    launching.say_where_to_look(pipeline.tracking.uri)


onerror:
    finish_following()
