"""Register the best model of each run in MLflow, if it is better than those registered before. The follower does this automatically."""

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # the package's folder

from snaketrain.runtime.credentials import hidden, hide_in_tracebacks, resolved


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+", metavar="FOLDER", help="folders of runs, such as results/runs/baseline")
    parser.add_argument("--uri", required=True, help="MLflow server or database")
    args = parser.parse_args()
    os.nice(10)  # trainings may be running on this machine
    hide_in_tracebacks()

    from snaketrain.extras.registry.registering import is_servable, register_best
    from snaketrain.tracking.mlflow_store import Store

    for name, reason in register_best(list(filter(is_servable, args.runs)), Store(resolved(args.uri))).items():
        print(hidden(f"{name}: {reason}"))


if __name__ == "__main__":
    main()
