"""Check a configuration and run it: `snaketrain run my.yaml`, or `snaketrain run my.yaml --profile slurm`.

It is short for `snakemake --profile profiles/local --configfile my.yaml`. Without FILE it runs config/config.yaml. All other arguments are
passed to snakemake: -n shows what would run.
"""

import argparse
import os
import shlex
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the package lies

from snaketrain.config.errors import ConfigurationError
from snaketrain.config.files import read_configuration

PROJECT = Path(__file__).resolve().parents[3]
DEFAULT = "config/config.yaml"


def main() -> None:
    usage = "%(prog)s [FILE] [--profile NAME] [ARGUMENT_OF_SNAKEMAKE ...]"
    parser = argparse.ArgumentParser(usage=usage, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--profile", default="local", metavar="NAME", help="`local`, `slurm`, or the folder of a profile of yours (default: %(default)s)"
    )
    words = sys.argv[1:]
    file = words.pop(0) if words and not words[0].startswith("-") else None  # an option of snakemake may take a word after it
    args, others = parser.parse_known_args(words)
    command = snakemake(file, args.profile, others)
    print(shlex.join(command), file=sys.stderr, flush=True)
    os.execv(sys.executable, [sys.executable, "-m", *command])


def snakemake(configuration: str | None, profile: str, others: list[str]) -> list[str]:
    """The command, once the configuration is without errors."""
    file = configuration or str(DEFAULT if Path(DEFAULT).exists() else PROJECT / DEFAULT)
    try:
        read_configuration([file])
    except ConfigurationError as error:
        raise SystemExit(str(error)) from None
    folder = PROJECT / "profiles" / profile if (PROJECT / "profiles" / profile).is_dir() else Path(profile)
    if not folder.is_dir():
        there = ", ".join(sorted(path.name for path in (PROJECT / "profiles").glob("*/") if path.name != "default"))
        raise SystemExit(f"--profile: {profile} is no folder, and none of {there}.")
    snakefile = [] if Path("Snakefile").exists() else ["--snakefile", str(PROJECT / "Snakefile")]
    return ["snakemake", *snakefile, "--profile", os.path.relpath(folder), "--configfile", file, *others]


if __name__ == "__main__":
    main()
