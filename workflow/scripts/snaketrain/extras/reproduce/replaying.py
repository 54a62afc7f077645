"""Replays steps of a training in a temporary folder as they were taken: with its settings, processes, threads and device, from its
beginning or from one of its checkpoints.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from snaketrain.orchestration.code_digest import SCRIPTS, code_digests
from snaketrain.orchestration.command_line import begun_training
from snaketrain.orchestration.stages import Training
from snaketrain.runtime.journal import Event, as_line, executions, read_events
from snaketrain.runtime.manifests import damage, private, read_manifest, write_checked, write_text
from snaketrain.runtime.ownership import living_process
from snaketrain.runtime.processes import LAUNCHER_SIGNALS, SECONDS_TO_SAVE
from snaketrain.runtime.provenance import described, differing, own_files
from snaketrain.runtime.run_folder import differing_names, fingerprint, microbatches_that_fit, of_training, planned_code, read_about
from snaketrain.runtime.stages import Job, JobSettings, previous_manifest
from snaketrain.runtime.strict_json import JsonObject

TRAIN = "workflow/scripts/train_model.py"
PROJECT = Path(__file__).resolve().parents[5]


@dataclass
class Replay:
    """Of the steps after `first` up to `last`, at which it saves. The settings stay what they are, since a schedule may depend on them."""

    run: JsonObject  # run.json
    root: Path  # the folder of the workflow
    folder: Path  # of the replay: made if it is not there
    last: int
    first: int = 0
    recorded: Path | None = None  # the training whose checkpoint `first` is continued; none: from the beginning
    project: Path = PROJECT
    through: Sequence[Path] = ()  # a script, and what it takes before the one of the training, which it runs
    seconds: float = 0.0
    process: "subprocess.Popen[bytes] | None" = field(default=None, init=False)

    @property
    def made(self) -> Path:
        """The folder of the replayed training."""
        return self.folder / "training"

    @property
    def given(self) -> JobSettings:
        return JobSettings("train_model", of_training(self.run["settings"]), {})

    @property
    def format(self) -> str:
        """Of checkpoints: that of those with which they are compared."""
        return "auto" if not self.recorded else "sharded" if any(self.recorded.glob("checkpoints/step-*/weights")) else "whole"

    def command(self) -> list[str]:
        run, processes = self.run, self.run["environment"]["processes"]
        torchrun = [Path(sys.executable).with_name("torchrun"), "--standalone", "--nproc-per-node", processes]
        torchrun += ["--signals-to-handle", LAUNCHER_SIGNALS, "--shutdown-timeout", SECONDS_TO_SAVE]
        ranking = run["settings"].get("select", {})  # only where it decides the training
        options = {
            **run["paths"], "checkpoint-format": self.format, "run-name": run["run"], "output": self.made / "manifest.json", "log-every": run["log_every"],
            "settings": self.given.store(folder=self.folder / "settings"), "device": run["device"], "branch-steps": self.last,
            "keep-best-by": ranking.get("metric"), "keep-best-mode": ranking.get("mode"),
        }  # fmt: skip
        words = [word for name, value in options.items() if value is not None for word in (f"--{name}", value)]
        return list(map(str, [*(torchrun if processes > 1 else [sys.executable]), *self.through, self.project / TRAIN, *words]))

    def prepare(self) -> None:
        """Make the folder in which a training resumes from the checkpoint: with it, what identifies the training, and its evaluations until then."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.recorded or not self.first:
            return
        from snaketrain.training.checkpoints.publishing import publish_again
        from snaketrain.training.checkpoints.ranking import read_state
        from snaketrain.training.early_stopping import evaluations
        from snaketrain.training.plan import folder_name

        checkpoint = Path("checkpoints") / folder_name(self.first)
        publish_again(self.recorded / checkpoint, self.made / checkpoint, dict(read_state(self.recorded / checkpoint)))
        inputs = {role: read_manifest(self.root / path).content for role, path in self.run["paths"].items()}
        belongs = {"fingerprint": fingerprint(Job(self.made / "manifest.json", self.given), inputs), "mixed": []}
        write_checked(self.made / "run.json", self.run | belongs)
        known = [(step, metrics) for step, metrics in evaluations(self.recorded).items() if step <= self.first]
        events = [{"event": "eval", "step": step, "metrics": metrics, "time": 0.0, "attempt": 0} for step, metrics in known]
        write_text(self.made / "journal.jsonl", "".join(map(as_line, events)))

    def start(self) -> None:
        self.prepare()
        self.seconds = time.monotonic()
        with open(self.folder / "training.log", "w", encoding="utf-8", opener=private) as log:
            environment = os.environ | environment_of(self.run)
            self.process = subprocess.Popen(self.command(), cwd=self.root, env=environment, stdout=log, stderr=log)

    def has_ended(self) -> bool:
        """Exits with the end of its log if it has failed."""
        if self.process is None or self.process.poll() is None:
            return False
        self.seconds = time.monotonic() - self.seconds
        if self.process.returncode:
            log = (self.folder / "training.log").read_text(encoding="utf-8", errors="replace")
            raise SystemExit(f"the training could not be repeated:\n{log[-3000:]}")
        return True

    def end(self) -> None:
        if self.process and self.process.poll() is None:
            self.process.terminate()
            self.process.wait()

    def events(self) -> list[Event]:
        return read_events(self.made / "journal.jsonl")[0]


def losses(events: Iterable[Event]) -> dict[int, float]:
    """The logged ones, by step."""
    return {event["step"]: event["metrics"]["loss"] for event in events if event["event"] == "train"}


def environment_of(run: JsonObject) -> dict[str, str]:
    """The variables of a training's processes; to be set before torch is imported."""
    return {"OMP_NUM_THREADS": str(run["threads"]), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "true"}


def replayed(replays: Iterable[Replay], at_once: int = 1) -> Generator[Replay]:
    """Each as it ends. Whatever ends this, such as Ctrl-C, ends those that run."""
    waiting, running = list(replays), list[Replay]()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                running.append(waiting.pop(0))
                running[-1].start()
            for replay in [each for each in running if each.has_ended()]:
                running.remove(replay)
                yield replay
            time.sleep(0.05)
    finally:
        for replay in running:
            replay.end()


# --- What the results folder has recorded about a training.


def parser_of_run(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="RUN", help="name of a run of the results")
    parser.add_argument(
        "--results", type=Path, default=Path("results"), metavar="FOLDER", help="results of the workflow (default: results)"
    )
    return parser


class Recorded:
    def __init__(self, results: Path, name: str):
        self.name, self.root, self.folder = name, results.resolve().parent, begun_training(results.resolve() / "runs", name)
        if (about := read_about(self.folder)) is None:
            raise SystemExit(f"{self.folder}/run.json cannot be used. Start snakemake: it makes what is missing.")
        if process := living_process(self.folder):
            raise SystemExit(f"{name} is being trained, by process {process}. Wait for its end.")
        self.run: JsonObject = about
        self.events: list[Event] = read_events(self.folder / "journal.jsonl")[0]

    @cached_property
    def metrics(self) -> list[str]:
        """Names of those that its evaluations measure; of one that is not finished, none are known."""
        made = previous_manifest(self.folder)
        return list(made.facts["metrics"]) if made else []

    @cached_property
    def checkpoints(self) -> list[int]:
        """The steps whose checkpoints are kept; the initial weights are those of step 0."""
        return [0, *sorted(int(path.name.removeprefix("step-")) for path in self.folder.glob("checkpoints/step-*"))]

    def checkpoint(self, step: int) -> Path:
        from snaketrain.training.plan import folder_name

        return self.folder / "checkpoints" / folder_name(step)

    def executed_otherwise(self, first: int, last: int, than: list[Event] | None = None) -> list[str]:
        """In what steps after `first` up to `last` were computed otherwise than the last ones of all, by which run.json goes; or `than` those of a replay."""
        from snaketrain.training.execution import execution_differences

        known, others = executions(self.events), executions(self.events if than is None else than)
        used = [known[step] for step, after in pairwise([*known, sys.maxsize]) if step <= last and after > first + 1]
        return next(filter(None, (execution_differences(each, others[max(others)]) for each in used)), [])

    def replay(self, first: int, last: int, folder: Path) -> Replay:
        return Replay(self.run, self.root, folder, last, first, self.folder)

    def tell_differences(self) -> list[str]:
        """What may explain other results, and what kind of device need not give the same."""
        found = [*(f"the code: {name} was changed" for name in changed_code(self.run)), *differing_environment(self.run, self.root)]
        for each in found:
            print(f"differs: {each}")
        if self.run["environment"]["device"] == "cuda" and not self.run["settings"]["train"]["deterministic"]:
            print("note: trained on a GPU without train.deterministic, so that a replay may be equal up to rounding only")
        if (number := microbatches_that_fit(self.folder)) > self.run["settings"]["train"]["accumulate"]:
            print(
                f"note: the memory ran out, and later steps were computed in {number} microbatches, unlike in a replay: their rounding may differ"
            )
        return found


def code_now(run: JsonObject) -> dict[str, str]:
    """Digests of the modules, and of the user's own files, that a training executed, and of what they import now. For the folder of the workflow
    as the working directory."""
    own = own_files(run["code"])
    files = filter(None, (file_of(name) for name in planned_code(run["code"]) if name not in own))
    return code_digests(SCRIPTS / "train_model.py", *files, *filter(os.path.isfile, own), label_classes=Training.label_classes)


def file_of(module: str, scripts: Path = SCRIPTS) -> Path | None:
    place = scripts / module.replace(".", "/")
    return next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()), None)


def changed_code(run: JsonObject) -> list[str]:
    """The names of those of them that are not what they were."""
    then = planned_code(run["code"])
    return [name for name in differing_names(then, code_now(run)) if name in then]


def differing_environment(run: JsonObject, root: Path) -> list[str]:
    """Differences that may explain other losses: in packages and input files."""
    found = [f"versions: {described(changed)}"] if (changed := differing(run["versions"])) else []
    for role, path in run["paths"].items():
        manifest = read_manifest(root / path)
        if manifest.content != run["inputs"][role]:
            found.append(f"{role}: {path} was {run['inputs'][role]}; here it is {manifest.content}")
        found += [f"{role}: {manifest.folder / name} {what}" for name, what in damage(manifest).items()]
    return found
