"""Sample the runs of a search by Optuna, batch by batch: propose their settings, run the workflow that trains them, and propose the next by their results.

What follows `--` is passed to snakemake. Killed, the same command continues.
"""

import argparse
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # where the package lies

from snaketrain.config.errors import ConfigurationError, problems_of
from snaketrain.config.files import read_configuration
from snaketrain.config.runs import CORRECTABLE, read
from snaketrain.config.schema import Settings
from snaketrain.config.schema.of_extras import modules
from snaketrain.extras.search.top_level import SampledRuns, sampled_searches
from snaketrain.orchestration.named_code import logged_metrics
from snaketrain.orchestration.preflight import examine
from snaketrain.runtime.manifests import digest
from snaketrain.runtime.strict_json import JsonObject, rounded
from snaketrain.tasks.metric_names import mode_of

if TYPE_CHECKING:
    from snaketrain.extras.search.study import SampledSearch

SNAKEFILE = Path(__file__).resolve().parents[5] / "Snakefile"
COMMON = ("data", "model", "train", "select")
OF_RUNS = ("runs", "sweeps", *(extra.KEY for extra in modules("top_level")))  # the sections that are not common to all runs
OF_DEV_SET = ("data.split_seed", "data.dev_fraction", "data.limit_dev", "data.dev")
INTERRUPTED = 128 + signal.SIGINT  # exit code


def main() -> None:
    args = arguments()
    try:
        config = read_configuration(args.files, args.config)
        names, common = sampled_searches(config), {key: value for key, value in config.items() if key not in OF_RUNS}
        problems = [problem for name in names for problem in problems_of(SampledRuns, config["search"][name], f"search.{name}")]
        if problems or not names:
            raise ConfigurationError(
                problems or ["search: has no entry with a `space` to sample from. See workflow/scripts/snaketrain/extras/search/README.md."]
            )
        settings = examine(common)["default"]  # which the sampled runs change
        samplings = {name: SampledRuns.model_validate(config["search"][name]) for name in names}
        if problems := [problem for name, sampling in samplings.items() for problem in space_problems(common, name, sampling)]:
            raise ConfigurationError(problems)
    except ConfigurationError as error:
        raise SystemExit(str(error)) from None
    try:
        from snaketrain.extras.search.study import SampledSearch
    except ModuleNotFoundError:
        raise SystemExit("search: sampling needs Optuna. Install it: pip install optuna") from None

    def why_impossible(changes: JsonObject) -> str:
        try:
            examine(common | {"runs": {"run": changes}})
        except ConfigurationError as error:
            return "; ".join(problem.removeprefix("runs.run.").removesuffix(" (run run)") for problem in error.problems)
        return ""

    try:
        found = [SampledSearch(name, sampling, mode(settings), basis(settings), why_impossible) for name, sampling in samplings.items()]
    except ConfigurationError as error:
        raise SystemExit(str(error)) from None
    sys.exit(sample(found, snakemake(args)))


def space_problems(common: JsonObject, name: str, sampling: SampledRuns) -> Iterator[str]:
    """Settings and values that are wrong in any run. Found before the first proposal, since proposals are kept."""
    for setting in sampling.space:
        if setting.startswith(OF_DEV_SET):
            yield f"search.{name}.space.{setting}: changes the development set, so that the runs cannot be ranked. Remove it."
        values = sampling.values(setting)
        found: dict[str, None] = {}
        for value in values if isinstance(values, list) else (values.low, values.high):
            reading = read(common | {"runs": {"run": {setting: value}}})
            kinds = reading.runs["run"].problems
            own = [problem.removeprefix("runs.run.") for problem in reading.problems]
            found |= dict.fromkeys(problem for problem in own if kinds.get(problem) not in CORRECTABLE)
        yield from (f"search.{name}.space.{problem}" for problem in found)


def sample(searches: "list[SampledSearch]", command: list[str]) -> int:
    """Until each search has all of its trials; returns the exit code."""
    for search in searches:
        search.tell()
    while True:
        new = sum(search.propose() for search in searches)
        waiting = unfinished(searches)
        if not new and not waiting:
            break
        code = run_workflow(command) if waiting else 0
        for search in searches:
            search.tell()
        if code == INTERRUPTED:
            return code
        if waiting and unfinished(searches) == waiting:
            print(f"search: {', '.join(waiting)} have no result yet. The same command continues.", file=sys.stderr)
            return code or 1
        if code and unfinished(searches):
            return code
    for search in searches:
        if best := search.best:
            given = ", ".join(f"{name}: {value}" for name, value in best.settings.items())
            print(f"search {search.name}: the best of {len(search.study.get_trials())} runs is {best.run} ({rounded(best.value)}; {given})")
        else:
            print(f"search {search.name}: none of its runs has a result", file=sys.stderr)
    return 0 if all(search.best for search in searches) else 1


def unfinished(searches: "list[SampledSearch]") -> list[str]:
    """The runs that have no result yet."""
    from snaketrain.extras.search.study import run_name

    return [run_name(search.name, trial.number) for search in searches for trial in search.waiting]


def run_workflow(command: list[str]) -> int:
    """Ctrl-C also reaches snakemake, which then ends its jobs; `subprocess.call` would kill it a quarter of a second later.

    SIGTERM is passed on to it.
    """
    interrupted = False
    with subprocess.Popen(command) as workflow:
        signal.signal(signal.SIGTERM, lambda *_: workflow.terminate())
        while True:
            try:
                code = workflow.wait()
            except KeyboardInterrupt:
                interrupted = True
            else:
                return INTERRUPTED if interrupted else code


def mode(common: Settings) -> str:
    return mode_of(common.select.metric, logged_metrics(common) or {}, common.select.mode)


def basis(common: Settings) -> str:
    return digest([getattr(common, section).as_json for section in COMMON])


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
