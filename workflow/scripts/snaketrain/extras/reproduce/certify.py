"""Show that changed code gives the results that are there, so that it makes no training stale.

Of each finished training whose code has changed, the first steps, the end of the warm-up and the last interval between kept checkpoints are
replayed with the code that is there now. If weights, optimizer state and logged figures are the same, bit for bit, and if the replays executed
what was changed, `certified.json` in the folder of the training says so, and Snakemake takes the code for unchanged. The former code is taken
from git and from the copies in the folder of the training.
"""

import argparse
import json
import os
import sys
import tempfile
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # where the package lies

from snaketrain.config.schema import Train
from snaketrain.extras.reproduce.certificates import FILE
from snaketrain.extras.reproduce.changed_lines import Difference, Statement, difference, statements
from snaketrain.extras.reproduce.replaying import Recorded, Replay, code_now, differing_environment, file_of, replayed
from snaketrain.extras.reproduce.reproduce import code_at
from snaketrain.extras.reproduce.verify import Interval, compare
from snaketrain.orchestration.code_digest import LABELS, OF_EXTRAS_LABELS, SETTINGS
from snaketrain.runtime.journal import duration
from snaketrain.runtime.loaded_code import changed_files, digest_of_source
from snaketrain.runtime.manifests import write_checked
from snaketrain.runtime.provenance import copy_of, own_files
from snaketrain.runtime.run_folder import planned_code
from snaketrain.runtime.stages import previous_manifest
from snaketrain.runtime.strict_json import shortened

FIRST_STEPS = 20
AFTER_WARMUP = 5
OBSERVED = Path(__file__).with_name("observed_training.py")
MOST_NAMED = 4
NOT_COMPARED = ("snaketrain.training.checkpoints.ranking", "snaketrain.training.checkpoints.store", "snaketrain.training.early_stopping")


class NotCertified(Exception):
    """Why not."""


def main() -> int:
    args = arguments()
    folders = sorted(args.results.glob("runs/*/training/run.json"))
    names = args.runs or [path.parents[1].name for path in folders]
    if not names:
        raise SystemExit(f"{args.results}: there are no trainings.")
    trainings = [Recorded(args.results, name) for name in names]
    os.chdir(args.results.resolve().parent)
    refused = 0
    for recorded in trainings:
        try:
            print(f"{recorded.name}: {certify(recorded, args.jobs)}", flush=True)
        except NotCertified as why:
            refused += 1
            print(f"{recorded.name}: NOT certified: {why}", flush=True)
        except KeyboardInterrupt:
            print(f"{recorded.name}: interrupted; its replays were ended, and nothing is recorded about it", file=sys.stderr)
            return 130
    return int(bool(refused))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", metavar="RUN", help="names of runs of the results (default: all)")
    parser.add_argument(
        "--results", type=Path, default=Path("results"), metavar="FOLDER", help="results of the workflow (default: results)"
    )
    parser.add_argument("--jobs", type=int, default=1, help="how many replays of a training run at once (default: %(default)s)")
    args = parser.parse_args()
    if args.jobs < 1:
        parser.error("--jobs must be at least 1")
    return args


def certify(recorded: Recorded, jobs: int) -> str:
    """What is said in the end; what speaks against a certificate is raised."""
    made = previous_manifest(recorded.folder)
    if not made or made.identity != recorded.run["identity"]:
        raise NotCertified("it is not finished. Start snakemake, which continues it or begins anew.")
    if recorded.run["mixed"]:
        raise NotCertified("its code or settings were changed in its middle, so that no code gives its results")
    change = Change(recorded)
    if not change.names:
        return "its code is what it was"
    if deciding := [name for name in change.names if name.startswith(NOT_COMPARED)]:
        raise NotCertified(
            f"{', '.join(deciding)}: which checkpoints are kept, or when a training ends, is what replays of some steps do not show"
        )
    unplanned = [f"{name} {how}" for name, how in changed_files(made.loaded).items() if name not in change.now]
    if other := [*unplanned, *differing_environment(recorded.run, recorded.root)]:
        raise NotCertified(f"a replay would not be of the same training: {'; '.join(other)}")
    print(f"{recorded.name}: {change}", flush=True)
    intervals = segments(recorded)
    steps, whole = sum(each.last - each.first for each in intervals), last_step(recorded)
    print(f"{recorded.name}: replays {steps} of {whole} steps ({steps / whole:.1%})", flush=True)
    with tempfile.TemporaryDirectory(prefix="certify-") as folder:
        lines = Path(folder) / "lines.json"
        lines.write_text(json.dumps(change.lines_to_observe()), encoding="utf-8")
        replays = [replay_of(recorded, each, Path(folder), lines) for each in intervals]
        try:
            with closing(replayed(replays, jobs)) as ended:
                for replay in ended:
                    compare_segment(recorded, replay)
        except SystemExit as failed:
            raise NotCertified(str(failed)) from None
        executed = lines.with_suffix(".executed").read_text(encoding="utf-8").splitlines()
    if missed := change.not_executed(set(executed)):
        raise NotCertified(f"the replays are equal, but none of them executed {shortened(missed, MOST_NAMED)}")
    certificate = {"identity": made.identity, "then": change.then, "now": change.now, "intervals": [str(each) for each in intervals]}
    write_checked(recorded.folder / FILE, certificate)
    return f"certified: the results of the changed code are equal in {steps} of {whole} steps, and Snakemake takes it for unchanged"


# --- What was changed.


@dataclass
class Change:
    """Of the code of a training, since it was trained."""

    recorded: Recorded
    then: dict[str, str] = field(init=False)  # digests
    now: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.then, self.now = planned_code(self.recorded.run["code"]), code_now(self.recorded.run)

    def __str__(self) -> str:
        counts = {name: len(each.changed) + len(each.removed) for name, each in self.differences.items()}
        return f"changed statements: {shortened([f'{count} in {name}' for name, count in counts.items()], MOST_NAMED)}"

    @property
    def names(self) -> list[str]:
        """Those that are there now. Whatever is not there any more is executed by nothing."""
        return [name for name, digest in self.now.items() if self.then.get(name) != digest]

    @cached_property
    def modules(self) -> dict[Path, list[Statement]]:
        """All that a training may execute now, by files."""
        files = (self._file(name) for name in self.now)
        return {file: statements(file.read_text(encoding="utf-8")) for file in files}

    @cached_property
    def differences(self) -> dict[str, Difference]:
        former = self._former()
        return {name: difference(statements(former.get(name, "")), self.modules[self._file(name)]) for name in self.names}

    @cached_property
    def mentions(self) -> dict[str, list[tuple[Path, Statement]]]:
        """The statements of functions that mention constants, imports or classes that were changed."""
        changed = {name for each in self.differences.values() for name in each.names}
        found: dict[str, list[tuple[Path, Statement]]] = {}
        for file, module in self.modules.items():
            for each in module:
                for name in each.mentions & changed if each.place.in_function else ():
                    found.setdefault(name, []).append((file, each))
        return found

    def lines_to_observe(self) -> dict[str, list[int]]:
        found: dict[str, set[int]] = {}
        required = [(self._file(name), each) for name, one in self.differences.items() for each in one.required]
        for file, each in [*required, *(place for places in self.mentions.values() for place in places)]:
            found.setdefault(str(file), set()).update(each.lines)
        return {file: sorted(lines) for file, lines in found.items()}

    def not_executed(self, executed: set[str]) -> list[str]:
        def was_executed(file: Path, statement: Statement) -> bool:
            return any(f"{file}:{line}" in executed for line in statement.lines)

        found: dict[str, None] = {}
        for name, one in self.differences.items():
            file = self._file(name)
            executable = lines_with_code(file)
            for each in one.required:
                if executable.intersection(each.lines) and not was_executed(file, each):
                    found[f"{name}, line {each.lines.start}"] = None
        for name, places in self.mentions.items():
            if not any(was_executed(*place) for place in places):
                found[f"anything that mentions {name}"] = None
        return list(found)

    def _file(self, name: str) -> Path:
        file = Path(name).absolute() if name in own_files([name]) else file_of(name)
        assert file, f"{name} is imported, and has no file"
        return file

    def _former(self) -> dict[str, str]:
        """The former sources, which must be those that the digests are of."""
        own = {name: self.recorded.folder / copy_of(name) for name in own_files(self.names) if name in self.then}
        found = {name: path.read_text(encoding="utf-8") for name, path in own.items()}
        if ours := [name for name in self.names if name in self.then and name not in own]:
            git, changes = self.recorded.run["git"], self.recorded.folder / "code.diff"
            with tempfile.TemporaryDirectory(prefix="former-") as folder:
                project = git["commit"] and code_at(git["commit"], changes if git["dirty"] else None, Path(folder))
                files = {name: file_of(name, project / "workflow/scripts") for name in ours} if project else {}
                found |= {name: file.read_text(encoding="utf-8") for name, file in files.items() if file}
        for name in self.names:
            if name in self.then and (name not in found or not self._is_as_recorded(name, found[name])):
                where = f"commit {self.recorded.run['git']['commit']} with its uncommitted changes" if name not in own else own[name]
                raise NotCertified(f"{name} as it was when this was trained is not to be had from {where}")
        return found

    def _is_as_recorded(self, name: str, source: str) -> bool:
        """Of files that declare settings or kinds of labels, the digest is of a part, which is not taken out here."""
        file = self._file(name)
        in_part = SETTINGS.fullmatch(name) or file.parent == LABELS or file.name == OF_EXTRAS_LABELS
        return bool(in_part) or digest_of_source(source) == self.then[name]


def lines_with_code(file: Path) -> set[int]:
    """Not those of a `global`, for example."""
    waiting, found = [compile(file.read_text(encoding="utf-8"), str(file), "exec")], set[int]()
    while waiting:
        code = waiting.pop()
        found |= {line for *_, line in code.co_lines() if line}
        waiting += [each for each in code.co_consts if isinstance(each, type(code))]
    return found


# --- What is replayed, and compared.


def last_step(recorded: Recorded) -> int:
    return max((event["step"] for event in recorded.events if event["event"] in ("train", "checkpoint")), default=0)


def segments(recorded: Recorded) -> list[Interval]:
    """The first steps, those around the end of the warm-up, and the last interval between checkpoints; they end where figures were logged."""
    kept, last = recorded.checkpoints, last_step(recorded)
    logged = sorted({event["step"] for event in recorded.events if event["event"] == "train"})

    def end_of(step: int) -> int:
        return next((each for each in logged if each >= step), last)

    total = next(event["steps"] for event in recorded.events if event["event"] == "attempt")
    warm = Train.model_validate(recorded.run["settings"]["train"]).warmup_steps(total)
    *_, final = list(pairwise(kept)) or [(0, last)]
    found: list[Interval] = []
    for begin, end in sorted(
        [(0, end_of(FIRST_STEPS)), (max(step for step in kept if step < max(warm, 1)), end_of(warm + AFTER_WARMUP)), final]
    ):
        if found and begin < found[-1].last:
            found[-1].last = max(found[-1].last, end)
        else:
            found.append(Interval(begin, end))
    return found


def replay_of(recorded: Recorded, interval: Interval, folder: Path, lines: Path) -> Replay:
    replay = recorded.replay(interval.first, interval.last, folder / str(interval.first))
    replay.through = [OBSERVED, lines]
    return replay


def compare_segment(recorded: Recorded, replay: Replay) -> None:
    interval = Interval(replay.first, replay.last)
    compare(interval, recorded, replay)
    if interval.differences:
        otherwise = recorded.executed_otherwise(replay.first, replay.last, replay.events())
        why = [f"executed otherwise: {'; '.join(otherwise)}"] if otherwise else []
        raise NotCertified(shortened([*why, *interval.differences], MOST_NAMED))
    print(
        f"{recorded.name}: {interval}: replayed in {duration(replay.seconds)}, {interval.compared} tensors and figures are equal",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
