"""The versions of the packages that compute results: recorded with each result, and compared with those that are installed now."""

import sys
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import metadata

# by the name of the package, its module
COMPUTING = {
    "torch": "torch",
    "triton": "triton",
    "torchao": "torchao",
    "transformers": "transformers",
    "tokenizers": "tokenizers",
    "peft": "peft",
    "fairscale": "fairscale",
    "numpy": "numpy",
    "scipy": "scipy",
    "pandas": "pandas",
    "pyarrow": "pyarrow",
    "scikit-learn": "sklearn",
    "statsmodels": "statsmodels",
    "torchmetrics": "torchmetrics",
    "rouge-score": "rouge_score",
    "sacrebleu": "sacrebleu",
    "optuna": "optuna",
}
MOST_NAMED = 4  # packages in a line


@cache
def installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def all_installed() -> dict[str, str]:
    """Those that any stage computes with."""
    return {name: version for name in COMPUTING if (version := installed(name))}


def in_use() -> dict[str, str]:
    """Those that this process has imported."""
    return {name: version for name, module in COMPUTING.items() if module in sys.modules and (version := installed(name))}


def differing(recorded: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """By package, the recorded version and the one that is installed now."""
    now = {name: installed(name) or "none" for name in recorded}
    return {name: (version, now[name]) for name, version in recorded.items() if now[name] != version}


def described(found: Mapping[str, tuple[str, str]]) -> str:
    """`torch 2.13.0 (now 2.14.0), numpy 2.3.0 (now 2.4.0)`."""
    named = [f"{name} {before} (now {now})" for name, (before, now) in sorted(found.items())]
    return ", ".join(named[:MOST_NAMED]) + (f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else "")


def one_after_the_other(attempts: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Those of a training of several attempts: `2.13.0, then 2.14.0` where they changed in between."""
    found: dict[str, list[str]] = {}
    for versions in attempts:
        for name, version in versions.items():
            known = found.setdefault(name, [])
            if not known or known[-1] != version:
                known.append(version)
    return {name: ", then ".join(known) for name, known in found.items()}
