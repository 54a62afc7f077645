"""Check a configuration, run it, or say which jobs would run, and why: the commands `check`, `run` and `why` of snaketrain."""

import argparse
import inspect
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the package lies

from snakemake_logger_plugin_snaketrain.messages import REASONS
from snaketrain.config.errors import ConfigurationError
from snaketrain.config.files import read_configuration
from snaketrain.orchestration.command_line import CONFIGURATION, default, refuse_unknown, snakemake


def main() -> int | None:
    commands: dict[str, Callable[[list[str]], int | None]] = {"check": check, "run": run, "why": why}
    name, *words = sys.argv[1:] or [""]
    if name not in commands:
        raise SystemExit(f"usage: run.py {'|'.join(commands)} ...")
    return commands[name](words)


def parser_of(command: Callable[[list[str]], int | None], usage: str | None = None) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        f"snaketrain {command.__name__}", usage, inspect.getdoc(command), formatter_class=argparse.RawDescriptionHelpFormatter
    )


def check(words: list[str]) -> int | None:
    """Check a configuration as the workflow does before its first job, and report all errors at once. No job is started.

    With --machine it tries instead what a training needs of this machine, and takes no configuration.
    """
    parser = parser_of(check)
    parser.add_argument(
        "--machine", action="store_true", help="try torch, its devices, a collective between two processes, MLflow and SLURM"
    )
    parser.add_argument(
        "files", nargs="*", metavar="FILE",
        help="configuration in YAML or JSON; later files are merged over earlier ones (default: config/config.yaml)",
    )  # fmt: skip
    args = parser.parse_args(words)
    if args.machine:
        from tools import check_machine

        if args.files:
            parser.error("--machine takes no configuration: check that without it")
        return min(1, check_machine.check())
    from snaketrain.orchestration.preflight import examine

    try:
        runs = examine(read_configuration(args.files or [default()]))
    except ConfigurationError as error:
        raise SystemExit(str(error)) from None
    print(f"No errors in the configuration of {len(runs)} run{'s' * (len(runs) != 1)}.")
    return None


def run(words: list[str]) -> None:
    """Check a configuration and run it: `snaketrain run my.yaml`, or `snaketrain run my.yaml --profile slurm`.

    It is short for `snakemake --profile profiles/local --configfile my.yaml`. Without FILE it runs config/config.yaml. All other arguments
    are passed to snakemake: -n shows what would run.
    """
    parser = parser_of(run, "%(prog)s [FILE] [--profile NAME] [ARGUMENT_OF_SNAKEMAKE ...]")
    parser.add_argument(
        "--profile", default="local", metavar="NAME", help="`local`, `slurm`, or the folder of a profile of yours (default: %(default)s)"
    )
    file = words.pop(0) if words and not words[0].startswith("-") else None  # an option of snakemake may take a word after it
    args, others = parser.parse_known_args(words)
    command = snakemake(file, args.profile, others)
    print(shlex.join(command), file=sys.stderr, flush=True)
    os.execv(sys.executable, [sys.executable, "-m", *command])


# --- why


JOB = re.compile(r"^(?:local)?(?:rule|checkpoint) (\w+):\n((?:    .*\n)+)", re.M)
CHANGE = re.compile(r"^        (\S+: .* -> .*)$", re.M)
FIELD = re.compile(r"^    (reason|wildcards): (.*)$", re.M)
FOLLOWS = "Input files updated by another job"
FIRST = "Missing output files"


@dataclass(frozen=True)
class Job:
    rule: str
    name: str  # the values of its wildcards
    reason: str  # in Snakemake's words
    changes: tuple[str, ...]  # of settings and code, as our console shows them


def why(words: list[str]) -> int:
    """Say which jobs would run, and why: `snaketrain why my.yaml`, or `snaketrain why my.yaml RUN ...` for the jobs of some runs.

    It asks `snakemake --dry-run`, and shows which settings changed, from which value to which. Nothing runs, and nothing is changed.
    """
    parser = parser_of(why)
    parser.add_argument("file", nargs="?", metavar="FILE", help="configuration in YAML or JSON (default: config/config.yaml)")
    parser.add_argument("runs", nargs="*", metavar="RUN", help="only the jobs of these runs (default: all)")
    parser.add_argument("--config", nargs="+", default=[], metavar="NAME=VALUE", help="settings over those of the file, as for snakemake")
    args = parser.parse_args(words)
    if args.file and not args.file.endswith(CONFIGURATION) and not Path(args.file).exists():
        args.file, args.runs = None, [args.file, *args.runs]
    if args.runs:
        refuse_unknown(args.runs, args.file, args.config)
    overrides = ["--config", *args.config] if args.config else []
    command = snakemake(args.file, "local", ["--dry-run", "--nolock", *overrides])
    done = subprocess.run([sys.executable, "-m", *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        print(done.stdout, file=sys.stderr, end="")
        return done.returncode
    jobs = [job for job in jobs_in(done.stdout) if job.rule != "all" and (not args.runs or set(job.name.split(", ")) & set(args.runs))]
    columns = [max((len(getattr(job, column)) for job in jobs), default=0) for column in ("rule", "name")]
    for job in jobs:
        first, *others = list(causes(job)) or [job.reason]
        print(f"{job.rule.ljust(columns[0])}  {job.name.ljust(columns[1])}  {first}")
        for line in others:
            print(f"{' ' * (sum(columns) + 4)}{line}")
    if not jobs:
        print("Nothing would run: all results are there, and nothing that they depend on has changed.")
    return 0


def jobs_in(text: str) -> Iterator[Job]:
    for rule, body in JOB.findall(text):
        fields = dict(FIELD.findall(body))
        names = [part.partition("=")[2] for part in fields.get("wildcards", "").split(", ") if part]
        yield Job(rule, ", ".join(names), fields.get("reason", ""), tuple(CHANGE.findall(body)))


def causes(job: Job) -> Iterator[str]:
    """Snakemake's reason, one cause a line. A job that only follows another one has no cause of its own."""
    yield from job.changes
    yield from (short for words, short in REASONS.items() if words in job.reason)
    if FIRST in job.reason:
        yield "its result is not there"
    elif FOLLOWS in job.reason and not job.changes:
        yield "what it reads is made again"


if __name__ == "__main__":
    sys.exit(main())
