"""Refuses a run that cannot fit into the memory of its GPUs, before it waits in a queue for them.

Only runs with `compute.memory_gb_of_gpu` pay for it: a process imports torch and plans them, once for equal settings, code and data.
"""

import contextlib
import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from snaketrain.config.references import NotFound
from snaketrain.config.schema import Settings
from snaketrain.orchestration.code_digest import SCRIPTS, code_digests
from snaketrain.orchestration.launching import trying
from snaketrain.orchestration.names import data_name
from snaketrain.orchestration.own_files import class_files, dataset_classes
from snaketrain.orchestration.strategy_declarations import strategy_files
from snaketrain.runtime.manifests import digest, read_if_intact, write_checked
from snaketrain.runtime.strict_json import JsonObject

STORE = Path(".snakemake/snaketrain-plans.json")
SECONDS_A_RUN = 120
GIB = 2**30
WITHOUT_EFFECT = ("seed", "learning_rate", "weight_decay")  # in which the points of a sweep differ
REMEDIES = {
    "activations": "train.recompute_activations: true or a larger train.accumulate",
    "loss": "a larger train.accumulate",
    "parameters": "train.strategy: fsdp on more processes",
    "gradients": "train.strategy: fsdp on more processes",
    "optimizer": "train.strategy: zero1 or fsdp on more processes",
}


def problems(runs: Mapping[str, Settings]) -> list[str]:
    """Of each run that cannot fit, why. A run that has been trained has fitted."""
    asked = {
        name: run
        for name, run in runs.items()
        if run.compute.memory_gb_of_gpu is not None and not Path(f"results/runs/{name}/training/manifest.json").is_file()
    }
    if not asked:
        return []
    keys = {name: key for name, run in asked.items() if (key := _key(run))}
    plans = _stored()
    missing = {key: asked[name] for name, key in keys.items() if key not in plans}
    if missing:
        plans |= dict(zip(missing, _planned(list(missing.values())), strict=True))
        with contextlib.suppress(OSError):  # a read-only folder
            STORE.parent.mkdir(exist_ok=True)
            write_checked(STORE, {"plans": {key: plan for key, plan in plans.items() if "problem" not in plan}})
    for problem in sorted({plan["problem"] for key in {*keys.values()} if "problem" in (plan := plans[key])}):
        print(f"compute.memory_gb_of_gpu: not checked. {problem}", file=sys.stderr, flush=True)
    return [f"{_error(plans[key])} (run {name})" for name, key in keys.items() if plans[key].get("cannot fit")]


def _error(plan: JsonObject) -> str:
    part = max(plan["parts"], key=lambda name: plan["parts"][name])
    remedy = REMEDIES.get(part, "a smaller model or shorter texts")
    assumed = f" ({plan['assumed']})" if plan["assumed"] else ""
    return (
        f"compute.memory_gb_of_gpu: is {plan['limit'] / GIB:g}, but each of {plan['processes']} processes needs {plan['peak'] / GIB:.1f} GiB{assumed}, "
        f"most of it for {part} ({plan['parts'][part] / GIB:.1f} GiB): {remedy} helps. `make plan` looks for the smallest change that fits."
    )


def _key(run: Settings) -> str | None:
    """Of everything that decides a plan; None where the names are wrong, which is reported elsewhere."""
    try:
        named = [(run.train.task.use, "tasks"), (run.model.use, None), *dataset_classes(run.data)]
        own = [*class_files(named), *strategy_files(run.train.strategy.use)]
        code = code_digests(SCRIPTS / "snaketrain/extras/planning/planner_process.py", *own)
        manifest = Path(f"results/data/{data_name(run.data)}/manifest.json")
    except (NotFound, OSError, SyntaxError):
        return None
    prepared = manifest.read_text(encoding="utf-8") if manifest.is_file() else ""
    version = importlib.metadata.version("transformers") + importlib.metadata.version("torch")
    return digest(_relevant(run), code, prepared, version)


def _relevant(run: Settings) -> JsonObject:
    content = run.model_dump(mode="json", include={"data", "model", "train", "compute"})
    content["train"] = {name: value for name, value in content["train"].items() if name not in WITHOUT_EFFECT}
    return content


def _stored() -> dict[str, JsonObject]:
    stored = read_if_intact(STORE, "the memory is planned again")
    return dict(stored["plans"]) if stored else {}


def _planned(runs: list[Settings]) -> list[JsonObject]:
    """In another process. Where it fails, runs are not refused."""
    print(
        f"planning the memory of {len(runs)} {'run' if len(runs) == 1 else 'runs'} (compute.memory_gb_of_gpu)", file=sys.stderr, flush=True
    )
    command = trying("snaketrain.extras.planning.planner_process")
    requests = json.dumps([run.model_dump(mode="json") for run in runs])
    timeout = SECONDS_A_RUN * len(runs)
    try:
        done = subprocess.run(command, input=requests, capture_output=True, text=True, timeout=timeout)
        found: list[JsonObject] = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return [{"problem": f"the planner took more than {timeout} seconds"}] * len(runs)
    except (OSError, ValueError, IndexError):
        last = done.stderr.strip().splitlines()[-1:] or ["no output"]
        return [{"problem": f"the planner failed: {last[0]}"}] * len(runs)
    return found
