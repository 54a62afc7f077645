"""Repeat the first steps of a training from its record in MLflow, and say whether the losses are bit-identical.

It uses the recorded settings, the user's own code as it was then, and the project's code if git still has the commit. The data and
initial weights must still be there.
"""

import argparse
import functools
import json
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # where the package lies

from snaketrain.extras.reproduce.replaying import PROJECT, Replay, differing_environment, losses, replayed
from snaketrain.runtime.credentials import hidden, resolved
from snaketrain.runtime.provenance import copy_of, git, git_state, own_files
from snaketrain.runtime.secret_forms import HIDDEN
from snaketrain.runtime.stages import by_name
from snaketrain.runtime.strict_json import JsonObject
from snaketrain.tracking.database import SQLITE, readable


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_id", help="id of the training's run in MLflow")
    parser.add_argument("--uri", help="MLflow server or database (default: mlflow.db beside the results folder)")
    parser.add_argument(
        "--results", type=Path, default=Path("results"), metavar="FOLDER", help="results folder of the workflow (default: results)"
    )
    parser.add_argument(
        "--settings",
        nargs="*",
        default=[],
        metavar="KEY=JSON",
        help="settings whose value is hidden in MLflow, in full",
    )
    parser.add_argument("--steps", type=int, default=20, help="how many steps to repeat (default: %(default)s)")
    args = parser.parse_args()
    root = args.results.resolve().parent
    uri = resolved(args.uri) if args.uri else f"{SQLITE}{root / 'mlflow.db'}"
    with tempfile.TemporaryDirectory(prefix="reproduce-") as folder, readable(uri) as store:
        recorded = Recorded(store, args.run_id, Path(folder))
        run, expected = recorded.run, recorded.losses(args.steps)
        if "code" not in run:
            raise SystemExit(
                f"{args.run_id}: was recorded by an earlier version of snaketrain. Check that out, and repeat the training with it."
            )
        run["settings"] = written_out(run["settings"], args.settings)
        if not expected:
            raise SystemExit(f"{args.run_id}: MLflow has no train/loss within the first {args.steps} steps. Give more --steps.")
        project = project_then(run["git"], recorded.changes(), Path(folder))
        own = recorded.own_code()
        for difference in [*differences(run, root, project), *out_of_reach(root, own)]:
            print(f"differs: {difference}")
        replay = Replay(run, with_own_code(root, own, Path(folder)), Path(folder) / "replay", max(expected), project=project)
        (found,) = [losses(each.events()) for each in replayed([replay])]
    unequal = [step for step in sorted(expected) if found.get(step) != expected[step]]
    if unequal:
        step = unequal[0]
        print(f"{run['run']}: step {step} had a loss of {expected[step]!r}; repeated, it is {found.get(step)!r}")
    print(f"{run['run']}: {len(expected) - len(unequal)} of {len(expected)} losses up to step {max(expected)} are bit-identical")
    return int(bool(unequal))


def written_out(settings: JsonObject, given: list[str]) -> JsonObject:
    """The settings, with those whose value MLflow does not have replaced by the given ones."""
    values = dict(each.partition("=")[::2] for each in given)
    hidden_ones = {name: text for name, value in by_name(settings).items() if HIDDEN in (text := json.dumps(value, ensure_ascii=False))}
    if missing := [f"{name}={text}" for name, text in hidden_ones.items() if name not in values]:
        raise SystemExit(f"MLflow does not have the value of {', '.join(missing)}. Give it in full: --settings {shlex.quote(missing[0])}")
    for name in hidden_ones:
        *parents, last = name.split(".")
        functools.reduce(dict.__getitem__, parents, settings)[last] = json.loads(values[name])
    return settings


class Recorded:
    """What MLflow has recorded about a training."""

    def __init__(self, uri: str, run_id: str, folder: Path):
        from snaketrain.tracking.mlflow_store import Store

        self.uri, self.run_id, self.folder, self.client = uri, run_id, folder, Store(uri).client
        self.run: dict[str, Any] = json.loads(self._file("run.json").read_text(encoding="utf-8"))

    def losses(self, steps: int) -> dict[int, float]:
        return {point.step: point.value for point in self.client.get_metric_history(self.run_id, "train/loss") if point.step <= steps}

    def changes(self) -> Path | None:
        """Uncommitted changes to the code."""
        return self._file("code.diff") if self.run["git"]["dirty"] else None

    def own_code(self) -> dict[str, Path]:
        """The user's own files, as they were recorded."""
        return {name: self._file(copy_of(name)) for name in own_files(self.run["code"])}

    def _file(self, name: str) -> Path:
        from mlflow.exceptions import MlflowException

        try:
            return Path(self.client.download_artifacts(self.run_id, f"training/{name}", str(self.folder)))
        except (MlflowException, OSError) as error:
            raise SystemExit(
                f"{self.run_id}: MLflow at {self.uri} has no training/{name} for this run ({error}). Copy the id from the page of a training."
            ) from None


def code_at(commit: str, changes: Path | None, folder: Path) -> Path | None:
    """A copy of this project at a commit plus uncommitted changes; None if git cannot provide it."""
    root = (git("rev-parse", "--show-toplevel") or "").strip()
    if not root or git("-C", root, "archive", f"--output={folder}/code.tar", commit) is None:
        return None
    with tarfile.open(folder / "code.tar") as archive:
        archive.extractall(folder, filter="data")
    if changes and subprocess.run(["git", "apply", changes.resolve()], cwd=folder, capture_output=True).returncode:
        return None
    return folder / PROJECT.relative_to(root)


def project_then(then: dict[str, Any], changes: Path | None, folder: Path) -> Path:
    """A folder with the project at that commit; this one if git does not have it."""
    if then == git_state() and not then["dirty"]:
        return PROJECT
    (folder / "code").mkdir()
    project = code_at(then["commit"], changes, folder / "code") if then["commit"] else None
    if project:
        print(f"using the code of commit {then['commit']}{' with its uncommitted changes' * bool(changes)}")
    return project or PROJECT


def differences(run: dict[str, Any], root: Path, project: Path) -> list[str]:
    """Differences that may explain other losses: in code, packages and input files."""
    then, now = run["git"], git_state()
    if project != PROJECT or then == now:
        return differing_environment(run, root)
    with_changes = [" with changes" * bool(state["dirty"]) for state in (then, now)]
    code = f"the code: commit {then['commit']}{with_changes[0]}; here it is {now['commit']}{with_changes[1]}"
    return [code, *differing_environment(run, root)]


def out_of_reach(root: Path, own: dict[str, Path]) -> list[str]:
    """Changed files of the user that cannot be restored: they have an absolute path, or contained a password."""
    changed = [
        name
        for name, then in own.items()
        if (name.startswith("/") or HIDDEN in then.read_text(encoding="utf-8")) and not _same(root / name, then)
    ]
    return [f"the code: {name} was changed; MLflow has the former version without passwords, training/{copy_of(name)}" for name in changed]


def with_own_code(root: Path, own: dict[str, Path], folder: Path) -> Path:
    """A folder like `root`, but with the user's own files as they were."""
    in_reach = {name: then for name, then in own.items() if not name.startswith("/") and HIDDEN not in then.read_text(encoding="utf-8")}
    replaced = {Path(name): then for name, then in in_reach.items() if not _same(root / name, then)}
    if not replaced:
        return root
    copied = {above for name in replaced for above in name.parents}  # everything else in these folders is a link into `root`
    for above in sorted(copied):
        (folder / "workspace" / above).mkdir()
        for entry in (root / above).glob("*"):
            if above / entry.name not in copied | set(replaced):
                (folder / "workspace" / above / entry.name).symlink_to(entry)
    for name, then in replaced.items():
        print(f"using {name} as it was")
        shutil.copy(then, folder / "workspace" / name)
    return folder / "workspace"


def _same(now: Path, then: Path) -> bool:
    """Compare without passwords, which MLflow does not have."""
    return now.is_file() and hidden(now.read_text(encoding="utf-8")) == then.read_text(encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
