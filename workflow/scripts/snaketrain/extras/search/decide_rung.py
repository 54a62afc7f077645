"""Decide which runs of a search continue after a rung, by their predictions of the development set there."""

import math
import sys
import time
from argparse import Namespace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # where the package lies

from snaketrain.config.schema import Select
from snaketrain.evaluation.predictions import read_predictions
from snaketrain.extras.search.deciding import AtRung, decide
from snaketrain.extras.search.top_level import Search
from snaketrain.runtime import stages, strict_json
from snaketrain.runtime.manifests import Manifest, digest, read_manifest, verify, write_json
from snaketrain.runtime.strict_json import Json
from snaketrain.tasks.metric_names import Modes, mode_of


def arguments() -> Namespace:
    parser = stages.parser("decide_rung", __doc__)
    parser.add_argument("--decision", required=True, metavar="SEARCH/RUNG", help="name of the decision")
    parser.add_argument("--contenders", required=True, nargs="+", metavar="MANIFEST", help="manifests of the rungs to compare")
    return parser.parse_args()


def main(args: Namespace) -> None:
    started, job = time.time(), stages.Job(args.output, args.settings)
    given = job.given.settings
    search, select = Search.model_validate(given["search"]), Select.model_validate(given["select"])
    rungs = {manifest.facts["run"]: manifest for manifest in map(read_manifest, args.contenders)}
    verify(*rungs.values())
    measured: Modes = next((manifest.facts["metrics"] for manifest in rungs.values() if "error" not in manifest.facts), {})
    mode = mode_of(select.metric, measured, select.mode) if measured else "min"  # all have diverged
    standings = decide([at_rung(run, manifest, select.metric) for run, manifest in rungs.items()], select.metric, mode, search)
    survivors = sorted(each.run for each in standings if each.continues)
    if not survivors:
        raise SystemExit(
            f"search: no run is left, since all have diverged: {'; '.join(f'{each.run}: {each.why}' for each in standings)}. Lower "
            "train.learning_rate, and start again."
        )
    ranking: list[Json] = [
        {"run": each.run, "step": rungs[each.run].facts["step"], "value": each.value if math.isfinite(each.value) else None}
        | {"continues": each.continues, "why": each.why}
        for each in standings
    ]
    write_json(job.folder / "decision.json", {"decision": args.decision, "metric": select.metric, "mode": mode, "ranking": ranking})
    steps = {run: each.facts["step"] for run, each in rungs.items()}
    where = "stopped at rung {1} of search {0}".format(*args.decision.split("/"))
    stopped = {
        each.run: f"{where}{f', step {steps[each.run]}' if steps[each.run] else ''}: {each.why}" for each in standings if not each.continues
    }
    facts = {"decision": args.decision, "survivors": survivors, "stopped": stopped, "steps": steps}
    job.finish({run: manifest.content for run, manifest in rungs.items()}, ["decision.json"], facts, started)
    for each in standings:
        print(f"{'continues' if each.continues else 'stops':9}  {each.run}: {each.why}")


def at_rung(run: str, rung: Manifest, metric: str) -> AtRung:
    of_all_seeds = digest(rung.settings | {"train": rung.settings["train"] | {"seed": None}}, rung.inputs)
    if error := rung.facts.get("error"):
        return AtRung(run, math.nan, error=error, candidate=of_all_seeds)
    results = strict_json.loads(rung.file("dev_results.json").read_text(encoding="utf-8"))
    if metric not in results["metrics"]:
        raise SystemExit(f"select.metric: the training logs no `{metric}`. It logs: {', '.join(results['metrics'])}.")
    metrics = results["metrics"]
    step, meant = rung.facts["step"], rung.facts["rung_step"]
    note = f"at step {step} instead of {meant}, which it was past before it was searched" if step != meant else ""
    predictions = read_predictions(rung.folder, "dev", results)
    examples = results.get("examples_digest") or ""  # none in results of an earlier version
    loss = metrics.get("loss", math.inf)
    return AtRung(run, metrics[metric], loss, predictions, examples=examples, note=note, candidate=of_all_seeds)


if __name__ == "__main__":
    args = arguments()
    stages.run(partial(main, args), args.output.parent)
