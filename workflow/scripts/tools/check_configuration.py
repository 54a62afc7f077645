"""Check a configuration as the workflow does before its first job, and report all errors at once. Nothing is started."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the package lies

from snaketrain.config.errors import ConfigurationError
from snaketrain.config.files import read_configuration
from snaketrain.orchestration.preflight import examine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", metavar="FILE", help="configuration in YAML or JSON; later files are merged over earlier ones")
    args = parser.parse_args()
    try:
        runs = examine(read_configuration(args.files))
    except ConfigurationError as error:
        raise SystemExit(str(error)) from None
    print(f"No errors in the configuration of {len(runs)} run{'s' * (len(runs) != 1)}.")


if __name__ == "__main__":
    main()
