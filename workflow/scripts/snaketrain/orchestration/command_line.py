"""What commands of `snaketrain` share that work on a configuration: its runs, and the command of snakemake for it."""

import json
import os
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path

from snaketrain.config.errors import ConfigurationError, nearest
from snaketrain.config.files import read_configuration
from snaketrain.config.runs import read_runs
from snaketrain.runtime.strict_json import shortened

PROJECT = Path(__file__).resolve().parents[4]
DEFAULT, CONFIGURATION = "config/config.yaml", (".yaml", ".yml", ".json")
IN_BRACES, QUOTED = ",[]{}", tuple("[{'\"")  # what ends a text between braces, and what begins one that is complete as it is


def refuse_unknown(runs: Iterable[str], file: str | None, overrides: list[str]) -> None:
    """Runs that the configuration does not have."""
    try:
        known = read_runs(read_configuration([file or default()], overrides))
    except ConfigurationError as error:
        raise SystemExit(str(error)) from None
    if unknown := [run for run in runs if run not in known]:
        raise SystemExit(f"{file or default()}: has no run {unknown[0]!r}{nearest(unknown[0], known)} It has: {', '.join(sorted(known))}.")


def begun_training(runs: Path, name: str) -> Path:
    """The folder of a run's training, which may have ended."""
    folder = runs / name / "training"
    if not (folder / "run.json").is_file():
        known = sorted(path.parents[1].name for path in runs.glob("*/training/run.json"))
        raise SystemExit(f"{folder}: no training has begun there{nearest(name, known)} There are: {shortened(known, most=8) or 'none'}.")
    return folder


def snakemake(configuration: str | None, profile: str, others: list[str]) -> list[str]:
    """The command, once the configuration is without errors."""
    named = list(takewhile(lambda word: not word.startswith("-"), others))
    files = [configuration or default(), *(word for word in named if word.endswith(CONFIGURATION))]
    targets = [word for word in named if word not in files]  # which --configfile would take for files
    try:
        read_configuration(files)
    except ConfigurationError as error:
        raise SystemExit(str(error)) from None
    folder = PROJECT / "profiles" / profile if (PROJECT / "profiles" / profile).is_dir() else Path(profile)
    if not folder.is_dir():
        there = ", ".join(sorted(path.name for path in (PROJECT / "profiles").glob("*/") if path.name != "default"))
        raise SystemExit(f"--profile: {profile} is no folder, and none of {there}.")
    snakefile = [] if Path("Snakefile").exists() else ["--snakefile", str(PROJECT / "Snakefile")]
    options = by_section(others[len(named) :])
    return ["snakemake", *targets, *snakefile, "--profile", os.path.relpath(folder), "--configfile", *files, *options]


def default() -> str:
    return str(DEFAULT if Path(DEFAULT).exists() else PROJECT / DEFAULT)


def by_section(words: list[str]) -> list[str]:
    """With `train={seed: 1}` for `train.seed=1` after `--config`, where Snakemake takes no name with dots."""
    found, of_config = list[str](), False
    for word in words:
        of_config = word in ("--config", "-C") or (of_config and not word.startswith("-"))
        name, _, value = word.partition("=")
        section, *below = name.split(".")
        if of_config and below:
            if value[:1] not in QUOTED and set(value) & set(IN_BRACES):
                value = json.dumps(value, ensure_ascii=False)
            for part in reversed(below):
                value = f"{{{part}: {value}}}"
            word = f"{section}={value}"
        found.append(word)
    return found
