"""Check configuration files, and report each error with its line. Snakemake reads them before the workflow does, and says less about errors."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the package lies

from snaketrain.config.errors import ConfigurationError
from snaketrain.config.files import read_configuration


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", metavar="FILE", help="configuration in YAML or JSON; later files are merged over earlier ones")
    args = parser.parse_args()
    try:
        read_configuration(args.files)
    except ConfigurationError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
