"""Finds problems of `lm_eval` before any job: a harness that is not installed, tasks and files that are missing, models that it cannot score."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from snaketrain.config.errors import nearest
from snaketrain.config.schema import Settings
from snaketrain.extras.lm_eval.settings import LmEval, lm_eval_of
from snaketrain.extras.lm_eval.task_files import TaskFile, Tasks, tasks_in
from snaketrain.runtime.model_card import known_of
from snaketrain.runtime.strict_json import shortened

INSTALL = "pip install -e '.[lm-eval]'"
MOST_NAMED = 20  # tasks in a message
READERS = ("json", "csv", "text", "parquet", "arrow")  # of local files, by the package datasets


def relevant_to(run: Settings) -> object:
    return lm_eval_of(run), run.model.use, run.compute.container


def problems_of_run(run: Settings) -> Iterator[str]:
    given = lm_eval_of(run)
    if not given.tasks:
        return
    if run.compute.container is None and find_spec("lm_eval") is None:
        yield f"lm_eval.tasks: the harness is not installed. Install it with {INSTALL}, or remove `lm_eval`."
    if run.model.use.startswith("transformers.") and known_of(run.model.use)[0] != "AutoModelForCausalLM":
        yield f"lm_eval.tasks: the harness scores causal language models, but model.use is {run.model.use}. Remove `lm_eval` from this run."
    if not Path(given.folder).is_dir():
        yield f"lm_eval.folder: {given.folder} is not a folder. Put the tasks' YAML files there, or name another."
        return
    found = tasks_in(given.folder)
    for name in given.tasks:
        task = found.by_name.get(name)
        if task is None or "group" in task.content:
            yield missing(name, given, found)
        else:
            yield from problems_of_task(name, task, given)


def missing(name: str, given: LmEval, found: Tasks) -> str:
    names = sorted(name for name, task in found.by_name.items() if "group" not in task.content)
    broken = "".join(f" {path} cannot be read: {why}." for path, why in found.unreadable.items())
    if name in found.by_name:
        members = [str(each.get("task") if isinstance(each, dict) else each) for each in found.by_name[name].content.get("task") or []]
        return f"lm_eval.tasks: {name!r} is a group of tasks. Name the tasks themselves: {shortened(members, MOST_NAMED)}."
    there = f"It has: {shortened(names, MOST_NAMED)}." if names else "It has none."
    return f"lm_eval.tasks: {given.folder} has no task {name!r}{nearest(name, names)} {there}{broken}"


def problems_of_task(name: str, task: TaskFile, given: LmEval) -> Iterator[str]:
    source = task.content.get("dataset_path")
    if source and source not in READERS and not Path(source).exists():
        yield (
            f"lm_eval.tasks: {name} would fetch {source} from the hub, but its job has no network. Save the examples in a file, and write "
            f"`dataset_path: json` (or {', '.join(READERS[1:])}) and `dataset_kwargs: {{data_files: {{test: path}}}}` into {task.path}."
        )
    for written, files in task.data.items():
        if not files:
            yield f"lm_eval.tasks: {name}: {task.path} names {written}, which does not exist. Paths are relative to the working directory, {Path.cwd()}."
    if given.fewshot and task.content.get("num_fewshot") == 0:
        yield f"lm_eval.fewshot: {name} takes no examples (`num_fewshot: 0` in {task.path}). Remove that line, or set lm_eval.fewshot to null."
