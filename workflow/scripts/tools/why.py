"""Say which jobs would run, and why: `snaketrain why my.yaml`, or `snaketrain why my.yaml RUN ...` for the jobs of some runs.

It asks `snakemake --dry-run`, and shows which settings changed, from which value to which. Nothing runs, and nothing is changed.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the package lies

from snakemake_logger_plugin_snaketrain.messages import REASONS
from tools.run import snakemake

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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", metavar="FILE", help="configuration in YAML or JSON (default: config/config.yaml)")
    parser.add_argument("runs", nargs="*", metavar="RUN", help="only the jobs of these runs (default: all)")
    parser.add_argument("--config", nargs="+", default=[], metavar="NAME=VALUE", help="settings over those of the file, as for snakemake")
    args = parser.parse_args()
    overrides = ["--config", *args.config] if args.config else []
    command = snakemake(args.file, "local", ["--dry-run", "--nolock", *overrides])
    done = subprocess.run([sys.executable, "-m", *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        print(done.stdout, file=sys.stderr, end="")
        return done.returncode
    jobs = [job for job in jobs_in(done.stdout) if job.rule != "all" and (not args.runs or set(job.name.split(", ")) & set(args.runs))]
    columns = [max((len(getattr(job, column)) for job in jobs), default=0) for column in ("rule", "name")]
    for job in jobs:
        first, *others = list(why(job)) or [job.reason]
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


def why(job: Job) -> Iterator[str]:
    """Snakemake's reason, one cause a line. A job that only follows another one has no cause of its own."""
    yield from job.changes
    yield from (short for words, short in REASONS.items() if words in job.reason)
    if FIRST in job.reason:
        yield "its result is not there"
    elif FOLLOWS in job.reason and not job.changes:
        yield "what it reads is made again"


if __name__ == "__main__":
    sys.exit(main())
