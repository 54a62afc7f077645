"""Say what each run will need, before it waits in a queue: memory by part, bytes exchanged, checkpoints, time; and what to change if it does not fit.

The real task, model and strategy code runs on tensors without memory, so that a laptop plans for 1,024 GPUs.
"""

import argparse
import logging
import os
import sys
import warnings
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # where the package lies
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # DDP warns of what only the planner asks of it
os.environ["CUDA_VISIBLE_DEVICES"] = ""  # nothing is computed
os.environ["HF_HUB_OFFLINE"] = "1"

from snaketrain.config.errors import ConfigurationError
from snaketrain.config.files import read_configuration
from snaketrain.config.runs import read_runs
from snaketrain.config.schema import Settings
from snaketrain.orchestration.command_line import default
from snaketrain.runtime.manifests import write_json


def main() -> int:
    args = arguments()
    try:
        runs = read_runs(read_configuration(args.files or [default()], args.config))
    except ConfigurationError as error:
        raise SystemExit(str(error)) from None
    if unknown := [name for name in args.runs or () if name not in runs]:
        raise SystemExit(f"--runs: there is no run {unknown[0]!r}. There are: {', '.join(runs)}.")
    chosen = {name: with_gpu(run, args.gpu_memory_gb) for name, run in runs.items() if not args.runs or name in args.runs}
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    return plan(chosen, args)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "files", nargs="*", metavar="FILE",
        help="configuration in YAML or JSON; later files are merged over earlier ones (default: config/config.yaml)",
    )  # fmt: skip
    parser.add_argument("--config", nargs="+", metavar="NAME=VALUE", help="settings over those of the files, as for snakemake")
    parser.add_argument("--runs", nargs="+", metavar="RUN", help="plan only these (default: all)")
    parser.add_argument("--gpu-memory-gb", type=float, metavar="GB", help="memory of a GPU, in place of compute.memory_gb_of_gpu")
    parser.add_argument(
        "--gpu-tflops", type=float, metavar="TFLOPS", help="peak of a GPU at the run's precision, from its data sheet: for the time"
    )
    parser.add_argument("--no-proposals", action="store_true", help="do not look for a change with which a run fits")
    parser.add_argument(
        "--results", type=Path, default=Path("results"), help="where prepared data and earlier trainings are (default: %(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    return parser.parse_args()


def with_gpu(run: Settings, gib: float | None) -> Settings:
    if gib is None:
        return run
    return run.model_copy(update={"compute": run.compute.model_copy(update={"memory_gb_of_gpu": gib})})


def plan(runs: dict[str, Settings], args: argparse.Namespace) -> int:
    """Print the plans; 1 if a run cannot be planned or does not fit."""
    from snaketrain.checking.planned import NotPlannable
    from snaketrain.extras.planning import page
    from snaketrain.extras.planning.estimates import Estimate, plan_run
    from snaketrain.extras.planning.proposals import proposal
    from snaketrain.extras.planning.rates import rate_of

    estimates: dict[str, Estimate] = {}
    for name, run in runs.items():
        progress(name)
        try:
            estimates[name] = plan_run(run, args.results)
        except NotPlannable as problem:
            print(f"{name}: no plan. {problem}\n", flush=True)
    rate = rate_of(estimates, args.results, args.gpu_tflops) if estimates else None
    for name, found in estimates.items():
        print("\n".join(page.lines(name, found, rate)), flush=True)
        if not found.fits and not args.no_proposals:
            print(page.proposed(proposal(found, partial(plan_run, results=args.results), partial(progress, f"{name} with"))))
        print(flush=True)
    if note := page.assumptions(list(estimates.values())):
        print(note)
    if args.json:
        write_json(args.json, {name: page.figures(found) for name, found in estimates.items()})
    return int(len(estimates) < len(runs) or not all(found.fits for found in estimates.values()))


def progress(*words: str) -> None:
    print("planning", *words, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
