"""Sample the runs of a search by Optuna, batch by batch: propose their settings, run the workflow that trains them, and go on by their results.

What follows `--` is passed to snakemake. Killed, the same command continues.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the package lies

from snaketrain.config.errors import ConfigurationError
from snaketrain.config.files import read_configuration
from snaketrain.config.runs import read_runs, strings
from snaketrain.config.schema import Settings
from snaketrain.config.schema.search import Sampling
from snaketrain.config.searches import setting_problems
from snaketrain.config.trials import sampled_searches
from snaketrain.orchestration.inspection.task_metrics import logged_metrics
from snaketrain.runtime.manifests import digest
from snaketrain.tasks.metric_modes import mode_of

if TYPE_CHECKING:
    from snaketrain.sampling import SampledSearch

SNAKEFILE = Path(__file__).resolve().parents[3] / "Snakefile"
COMMON = ("data", "model", "train", "select")


def main() -> None:
    args = arguments()
    try:
        config = read_configuration(args.files, args.config)
        names = sampled_searches(config)
        problems = [problem for name in names for problem in setting_problems(Sampling, name, config["search"][name])]
        if problems or not names:
            raise ConfigurationError(problems or ["search: has no entry with a `space` to sample from. See docs/search.md."])
        # its runs are not known yet, and change these settings
        common = read_runs({key: value for key, value in config.items() if key not in ("search", "runs", "sweeps")})["default"]
    except ConfigurationError as error:
        raise SystemExit(str(error)) from None
    try:
        from snaketrain.sampling import SampledSearch
    except ModuleNotFoundError:
        raise SystemExit("search: sampling needs Optuna. Install it: pip install optuna") from None
    searches = [SampledSearch(name, Sampling.model_validate(config["search"][name]), mode(common), basis(common)) for name in names]
    sys.exit(sample(searches, snakemake(args)))


def sample(searches: "list[SampledSearch]", command: list[str]) -> int:
    """Until each search has all of its trials; returns the exit code."""
    for search in searches:
        search.tell()
    while True:
        new = sum(search.propose() for search in searches)
        waiting = [len(search.waiting) for search in searches]
        if not new and not any(waiting):
            break
        code = subprocess.call(command)
        for search in searches:
            search.tell()
        if [len(search.waiting) for search in searches] == waiting:
            return code or 1  # nothing has ended
        if any(search.waiting for search in searches) and code:
            return code
    for search in searches:
        if best := search.best:
            given = ", ".join(f"{name}: {value}" for name, value in best.settings.items())
            print(f"search {search.name}: the best of {len(search.study.get_trials())} runs is {best.run} ({best.value:.4g}; {given})")
    return 0


def mode(common: Settings) -> str:
    return mode_of(common.select.metric, logged_metrics(common) or {}, common.select.mode)


def basis(common: Settings) -> str:
    return digest([strings(section, getattr(common, section)) for section in COMMON])


def snakemake(args: argparse.Namespace) -> list[str]:
    given = ["--configfile", *args.files, *(["--config", *args.config] if args.config else [])]
    return [sys.executable, "-m", "snakemake", "--snakefile", str(SNAKEFILE), *given, *args.snakemake]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE", help="configuration in YAML or JSON; later files are merged over earlier ones")
    parser.add_argument("--config", nargs="+", metavar="NAME=VALUE", help="settings over those of the files, as for snakemake")
    own, passed_on = sys.argv[1:], []
    if "--" in own:
        own, passed_on = own[: own.index("--")], own[own.index("--") + 1 :]
    return parser.parse_args(own, argparse.Namespace(snakemake=passed_on))


if __name__ == "__main__":
    main()
