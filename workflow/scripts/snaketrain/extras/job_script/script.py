"""Print the training of a run as a script for sbatch: `snaketrain script my.yaml RUN > job.sh`, or `snaketrain script RUN`.

Its options are those with which the workflow would submit the training, from the configuration and the profile. Nothing is submitted.
"""

import argparse
import contextlib
import io
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # where the package lies

from snaketrain.extras.job_script import submitting
from snaketrain.extras.job_script.sbatch_script import script_of
from snaketrain.orchestration.command_line import refuse_unknown, snakemake
from snaketrain.orchestration.launching import SLURM
from snaketrain.orchestration.names import RESULTS
from snaketrain.orchestration.stages import TrainModel

if TYPE_CHECKING:
    from snakemake_executor_plugin_slurm import ExecutorSettings


def main() -> int:
    args = arguments()
    if args.directory:
        os.chdir(args.directory)
    refuse_unknown([args.run], args.file, args.config)
    others = [*(["--snakefile", args.snakefile] if args.snakefile else []), *(["--config", *args.config] if args.config else [])]
    command = snakemake(args.file, args.profile, others)
    target = f"{RESULTS}/{TrainModel.folder.format(args.run)}/manifest.json"
    settings = planned([target, *command[1:]])
    [(workflow, pipeline)] = submitting.known
    job = next(job for job in workflow.dag.jobs if target in job.output)
    above = workflow.dag.dependencies[job].items()
    before = sorted(str(file) for made_by, files in above if workflow.dag.needrun(made_by) for file in files)
    pipeline.stages[TrainModel.name].settings_file(args.run)  # which the script names, and a dry run does not write
    try:
        print(script_of(job, settings, pipeline, before), end="")
    except ValueError as error:
        raise SystemExit(str(error)) from None
    if before:
        print(
            f"What it reads is not there yet, or out of date. To make it: {shlex.join([command[0], *before, *command[1:]])}",
            file=sys.stderr,
        )
    return 0


def arguments() -> argparse.Namespace:
    usage = "%(prog)s [FILE] RUN [--profile NAME] [--config NAME=VALUE ...] [--snakefile FILE] [--directory FOLDER]"
    parser = argparse.ArgumentParser(usage=usage, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", metavar="FILE", help="configuration in YAML or JSON (default: config/config.yaml)")
    parser.add_argument("run", metavar="RUN", help="name of the run")
    parser.add_argument(
        "--profile", default="slurm", metavar="NAME", help="`slurm`, or the folder of a profile of yours for SLURM (default: %(default)s)"
    )
    parser.add_argument("--config", nargs="+", default=[], metavar="NAME=VALUE", help="settings over those of the file, as for snakemake")
    parser.add_argument("-s", "--snakefile", metavar="FILE", help="Snakefile that includes this workflow (default: as for snakemake)")
    parser.add_argument("-d", "--directory", type=Path, metavar="FOLDER", help="folder of the workflow (default: the current one)")
    args = parser.parse_args()
    if args.directory and not args.directory.is_dir():
        parser.error(f"--directory: {args.directory} is no folder")
    return args


def planned(words: list[str]) -> "ExecutorSettings":
    """Has Snakemake plan the jobs in this process, as for a dry run; what its executor is told otherwise."""
    from snakemake.cli import args_to_api, parse_args
    from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

    said, is_planned = io.StringIO(), False
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            parser, args = parse_args([*words, "--dry-run", "--nolock"])
            is_planned = args_to_api(args, parser)
    finally:
        if not is_planned:
            print(said.getvalue(), file=sys.stderr, end="")
    if not is_planned:
        raise SystemExit(1)
    if args.executor != SLURM:
        raise SystemExit(f"--profile: its executor is {args.executor}, but a script for sbatch is written with the options of {SLURM}.")
    return ExecutorPluginRegistry().get_plugin(args.executor).get_settings(args)
