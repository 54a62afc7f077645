"""`python -m snaketrain.checking.process`: runs as JSON on stdin, a line of JSON on stdout for each attempt and each problem.

A process of its own, since the workflow does not import torch, and since what a user wrote may print, hang or end it.
"""

import faulthandler
import json
import logging
import os
import sys
import warnings
from collections.abc import Callable
from typing import TextIO

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

from snaketrain.checking.findings import Findings, is_own
from snaketrain.checking.runs import check
from snaketrain.config.schema import Settings
from snaketrain.runtime.strict_json import JsonObject


def main() -> None:
    request = json.load(sys.stdin)
    say = to(separated_output())
    say({"ready": True})
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    runs = {name: Settings.model_validate(settings) for name, settings in request["runs"].items()}
    check(runs, Findings(say, request["skipped"]), without_data=request["without_data"])
    say({"done": True, "files": sorted({file for module in [*sys.modules.values()] if (file := own_file(module))})})
    os._exit(0)  # what the code of users has begun, such as threads, is not waited for


def separated_output() -> TextIO:
    """The stdout of this process, which nothing else can write to from now on: what is printed goes to stderr."""
    ours = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115 - code that reads from it gets nothing
    os.dup2(sys.stdin.fileno(), 0)
    faulthandler.enable()
    return ours


def to(output: TextIO) -> Callable[[JsonObject], None]:
    return lambda found: print(json.dumps(found), file=output, flush=True)


def own_file(module: object) -> str | None:
    file = getattr(module, "__file__", None)
    return file if isinstance(file, str) and is_own(file) else None


if __name__ == "__main__":
    main()
