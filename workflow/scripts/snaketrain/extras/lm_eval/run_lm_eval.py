"""Score the selected checkpoint, a causal language model, on a task of EleutherAI's lm-evaluation-harness, in one process."""

import json
import sys
import tempfile
import time
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # where the package lies

from snaketrain.runtime import stages
from snaketrain.runtime.loaded_code import imported_packages
from snaketrain.runtime.manifests import read_manifest, verify, write_json, write_text
from snaketrain.runtime.model_card import architecture_of, known_of, write_card
from snaketrain.runtime.provenance import in_use
from snaketrain.runtime.rank_logs import report_failure, start_rank
from snaketrain.runtime.ranks import leave
from snaketrain.runtime.strict_json import JsonObject

KEPT = ("results", "configs", "versions", "n-shot", "n-samples", "higher_is_better")  # of what the harness returns


def arguments() -> Namespace:
    parser = stages.parser("run_lm_eval", __doc__)
    parser.add_argument("--run-name", required=True, help="name of the run")
    parser.add_argument("--training", required=True, metavar="MANIFEST", help="manifest of the training, for the model card")
    parser.add_argument("--selection", required=True, metavar="MANIFEST", help="manifest of the selected checkpoint")
    parser.add_argument("--data", required=True, metavar="MANIFEST", help="manifest of the prepared training data, for the model card")
    parser.add_argument("--device", default="auto", help="device to run the model on: auto, cpu or cuda (default: %(default)s)")
    return parser.parse_args()


def main(args: Namespace) -> None:
    started, job = time.time(), stages.Job(args.output, args.settings)
    start_rank()
    training, selection, data = (read_manifest(path) for path in (args.training, args.selection, args.data))
    verify(selection)
    name, given, model = job.folder.name, job.given.settings["lm_eval"], selection.folder / "model"
    if known_of(architecture := architecture_of(model))[0] != "AutoModelForCausalLM":
        raise SystemExit(
            f"{model}: is {architecture or 'not of transformers'}, and the harness scores causal language models. Remove `lm_eval`."
        )
    with tempfile.TemporaryDirectory() as cache:
        found, task = scored(model, given, args.device, cache)
        examples = write_results(job.folder, args.run_name, name, found, task)
    write_text(
        job.folder / f"{name}_harness.json",
        json.dumps({key: found[key] for key in KEPT}, indent=2, default=lambda value: getattr(value, "__qualname__", str(value))) + "\n",
    )
    files = [f"{name}_{what}" for what in ("results.json", "predictions.csv", "plots.png", "harness.json")]
    version = {"lm_eval": str(found["lm_eval_version"])}
    facts = {"run": args.run_name, "set": name, "splits": {name: {"examples": examples}}, "versions": version}
    job.finish({"selection": selection.content}, files, facts, started, versions=in_use() | imported_packages() | version)
    write_card(training, data, selection)


def scored(model: Path, given: JsonObject, device: str, cache: str) -> tuple[JsonObject, Any]:
    """What the harness returns, and its task. `cache`: a folder for copies of the examples, which would pile up elsewhere."""
    import datasets
    import lm_eval
    import torch
    from lm_eval.tasks import TaskManager
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    if tokenizer.bos_token is None and tokenizer.eos_token is None:
        raise SystemExit(
            f"{model}: its tokenizer has no bos_token and no eos_token, and the harness needs one. Add it to tokenizer_config.json."
        )
    datasets.config.HF_DATASETS_CACHE = Path(cache)
    manager = TaskManager(include_path=given["folder"], include_defaults=False)
    task = manager.load([given["task"]])["tasks"][given["task"]]
    found = lm_eval.simple_evaluate(
        "hf", {"pretrained": str(model)}, [task], num_fewshot=given["fewshot"], batch_size=given["batch_size"], limit=given["limit"],
        apply_chat_template=given["chat_template"], device=device if device != "auto" else "cuda" if torch.cuda.is_available() else "cpu",
        task_manager=manager,
    )  # fmt: skip
    return found, task


def write_results(folder: Path, run: str, name: str, found: JsonObject, task: Any) -> int:
    """As any evaluation does, and the standard errors beside the metrics; returns the number of examples."""
    from snaketrain.evaluation import results
    from snaketrain.extras.lm_eval.samples import by_filter, figures, rows_of

    samples = by_filter(found["samples"][task.task_name])
    metrics, errors = figures(found["results"][task.task_name], several=len(samples) > 1)
    table, rows = rows_of(task, samples)
    measured: results.Measured = {"examples": len(table["text"]), "metrics": metrics, "baselines": {}}
    written = results.write_results(folder, run, name, measured, rows, table, {}, confidence=0.95, bins=10)
    write_json(folder / f"{name}_results.json", written | errors)
    return measured["examples"]


if __name__ == "__main__":
    args = arguments()
    folder = args.output.parent
    stages.run(partial(main, args), folder, partial(report_failure, "evaluation", folder), leave)
