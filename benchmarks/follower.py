"""The follower on a long journal, and killed at random moments: points a second, memory, and whether MLflow holds the same in the end.

The journals are written here; the follower is the one that a workflow starts, and the database a real one (sqlite).
"""

import json
import os
import random
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import add_figures, command_line
from workspace import START, make_workspace

from snaketrain.tracking.following import Follower
from snaketrain.tracking.mlflow_store import RUN_KEY, Store, workspace_id

METRICS = ("loss", "examples_per_second", "tokens_per_second", "learning_rate", "gradient_norm")


# --- a long journal


def long_journal(results: Path, points: int) -> None:
    """Of a training that is over, in the folder of the first run."""
    with open(results / "runs/first/training/journal.jsonl", "w", encoding="utf-8") as journal:
        for step in range(1, points // len(METRICS) + 1):
            metrics = {name: step * 0.37 + number for number, name in enumerate(METRICS)}
            journal.write(json.dumps({"event": "train", "step": step, "time": START + step / 10, "metrics": metrics}) + "\n")
        journal.write(json.dumps({"event": "end", "status": "STOPPED", "time": START + step, "step": step}) + "\n")


def catch_up(folder: Path, points: int) -> tuple[float, float, float]:
    """Seconds of following, CPU seconds, and the most memory in MB, of a process that does nothing else."""
    results = make_workspace(folder, {"first": {"ends": "nothing"}})
    long_journal(results, points)
    uri = f"sqlite:///{folder}/mlflow.db"
    Store(uri).client.search_experiments()  # makes the tables
    began = time.perf_counter()
    _, status, usage = os.wait4(start_following(results, uri), 0)
    seconds = time.perf_counter() - began
    if status:
        raise SystemExit(f"the follower ended with {status}")
    store = Store(uri)
    (run,) = store.client.search_runs([store.experiment("tests")], "attributes.run_name = 'first'")
    if run.data.metrics["train/loss"] != (points // len(METRICS)) * 0.37:
        raise SystemExit("points are missing")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def start_following(results: Path, uri: str) -> int:
    """In a process of its own, which must not inherit a connection to the database; its pid."""
    if pid := os.fork():
        return pid
    code = 1
    try:
        follower = Follower(results, Store(uri))
        for training in follower.runs():
            follower.update(training)
        code = 0
    finally:
        os._exit(code)


# --- killed at random moments


def content_of(uri: str) -> dict[str, Any]:
    """All that MLflow holds, without the ids that it draws at random."""
    store = Store(uri)
    experiments = [each.experiment_id for each in store.client.search_experiments()]
    found = {}
    for run in store.client.search_runs(experiments, max_results=1000):
        keys = {
            name: value
            for name, value in run.data.tags.items()
            if "run_id" not in name and name not in ("mlflow.parentRunId", "mlflow.note.content")
        }
        histories = {
            name: sorted((p.step, p.timestamp, repr(p.value)) for p in store.client.get_metric_history(run.info.run_id, name))
            for name in run.data.metrics
        }
        models = sorted(store.client.get_logged_model(model.model_id).name for model in (run.outputs.model_outputs if run.outputs else []))
        inputs = [each.dataset.digest for each in run.inputs.dataset_inputs]
        content = [run.info.status, run.info.end_time, run.data.params, keys, histories, models, inputs, artifacts(store, run.info.run_id)]
        if keys[RUN_KEY] in found:
            raise SystemExit(f"two runs with the key {keys[RUN_KEY]}")
        found[keys[RUN_KEY]] = content
    models = store.client.search_logged_models(experiments)
    metrics = {model.name: sorted((m.key, m.step, m.value) for m in model.metrics) for model in models}
    return {"runs": found, "models": metrics, "number of models": len(models)}


def artifacts(store: Store, run_id: str, folder: str | None = None) -> list[str]:
    found = []
    for each in store.client.list_artifacts(run_id, folder):
        found += artifacts(store, run_id, each.path) if each.is_dir else [each.path]
    return sorted(found)


def killed(results: Path, uri: str, after_seconds: float) -> bool:
    """Whether a follower was still at work so many seconds after its start."""
    pid = start_following(results, uri)
    time.sleep(after_seconds)
    os.kill(pid, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def kill_trials(folder: Path, count: int, seed: int = 0) -> tuple[list[str], int]:
    """The failures in that many trials, in each of which a follower was killed at work, and how many were killed in all."""
    empty = folder / "empty.db"
    Store(f"sqlite:///{empty}").client.search_experiments()
    (folder / "pristine").mkdir()
    workspace_id(make_workspace(folder / "pristine"))  # which the copies share

    def fresh(name: str) -> tuple[Path, str]:
        shutil.copytree(folder / "pristine", folder / name)
        shutil.copy(empty, folder / name / "mlflow.db")
        return folder / name / "results", f"sqlite:///{folder / name}/mlflow.db"

    began = time.perf_counter()
    results, uri = fresh("whole")
    undisturbed(results, uri)
    seconds, expected = time.perf_counter() - began, json.dumps(content_of(uri), sort_keys=True)
    draw, problems, hits = random.Random(seed), [], 0
    for number in range(count):
        results, uri = fresh(f"trial-{number}")
        while not killed(results, uri, after := draw.uniform(0, seconds)):
            seconds = after  # it had ended by then, so this does not count
            shutil.rmtree(results.parent)
            results, uri = fresh(f"trial-{number}")
        hits += 1 + sum(killed(results, uri, draw.uniform(0, seconds)) for _ in range(draw.randrange(4)))
        undisturbed(results, uri)
        # the data lie elsewhere in each trial
        same = json.dumps(content_of(uri), sort_keys=True).replace(f"trial-{number}", "whole") == expected
        problems += [] if same else [f"trial {number}: MLflow holds something else, see {folder / f'trial-{number}'}"]
        print(f"trial {number}: {'the same' if same else 'NOT THE SAME'}", flush=True)
    return problems, hits


def undisturbed(results: Path, uri: str) -> None:
    if os.waitpid(start_following(results, uri), 0)[1]:
        raise SystemExit(f"{results}: the follower failed")


def main() -> None:
    parser = command_line("follower", __doc__)
    parser.add_argument("--points", type=int, default=1_000_000, help="steps in the long journal; 0: none (default: %(default)s)")
    parser.add_argument("--trials", type=int, default=50, help="trials in which the follower is killed; 0: none (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments at which it is killed (default: %(default)s)")
    args = parser.parse_args()
    found: dict[str, dict[str, int]] = {}
    with tempfile.TemporaryDirectory(prefix="follower-") as folder:
        if args.points:
            _, _, few_mb = catch_up(Path(folder) / "few", args.points // 100)
            seconds, cpu_seconds, many_mb = catch_up(Path(folder) / "many", args.points)
            found[f"{args.points} points"] = {
                "points a second": round(args.points / seconds), "points a CPU second": round(args.points / cpu_seconds), "memory, MB": round(many_mb), "memory for a hundredth of the points, MB": round(few_mb),
            }  # fmt: skip
        if args.trials:
            (Path(folder) / "kills").mkdir()
            problems, hits = kill_trials(Path(folder) / "kills", args.trials, args.seed)
            found[f"killed, seed {args.seed}"] = {"trials": args.trials, "killed at work": hits, "another content": len(problems)}
            print(*problems, sep="\n")
    add_figures(args.output, found)


if __name__ == "__main__":
    main()
