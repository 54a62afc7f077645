"""Options that launch_local.py and launch_slurm.py share, and the command that every launcher starts."""

import argparse
from pathlib import Path


def add_restart_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--restarts", type=int, default=3, help="give up when more starts in a row have reached no new checkpoint (default: %(default)s)"
    )
    parser.add_argument(
        "--first-pause",
        type=float,
        default=2.0,
        metavar="SECONDS",
        help="pause before a restart; it doubles for each start in a row without a new checkpoint (default: %(default)g)",
    )


def parse_with_command(parser: argparse.ArgumentParser, words: list[str] | None = None) -> argparse.Namespace:
    """`command` becomes the words after `--`."""
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the script and its arguments, after --")
    args = parser.parse_args(words)
    args.command = args.command[1:] if args.command[:1] == ["--"] else args.command
    return args


def parse_with_training(parser: argparse.ArgumentParser, words: list[str] | None = None) -> argparse.Namespace:
    """The same for a command that trains; `folder` becomes the folder of the training."""
    args = parse_with_command(parser, words)
    if "--output" not in args.command[:-1]:
        parser.error("the command needs --output FOLDER/manifest.json: checkpoints and journal of the training are in that folder")
    args.folder = Path(args.command[args.command.index("--output") + 1]).parent
    return args
