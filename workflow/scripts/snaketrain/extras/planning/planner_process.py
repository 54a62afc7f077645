"""Plans runs for the checks before any job: `python -m snaketrain.extras.planning.planner_process`, requests on stdin, figures on stdout.

A separate process, since the workflow does not import torch.
"""

import json
import logging
import os
import sys
import warnings
from pathlib import Path

from snaketrain.checking.planned import NotPlannable
from snaketrain.config.schema import Settings
from snaketrain.extras.planning.estimates import plan_run
from snaketrain.extras.planning.page import figures
from snaketrain.runtime.strict_json import JsonObject

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


def main() -> None:
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    found: list[JsonObject] = []
    for settings in json.load(sys.stdin):
        try:
            found.append(figures(plan_run(Settings.model_validate(settings), Path("results"))))
        except NotPlannable as problem:
            found.append({"problem": str(problem)})
    print(json.dumps(found))


if __name__ == "__main__":
    main()
