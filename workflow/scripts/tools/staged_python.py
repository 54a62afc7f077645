"""Execute Python from a copy of its virtual environment on this machine's own disk. If no copy can be made, a line says why, and Python is
executed from the environment itself.
"""

import argparse
import os
import platform
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the package lies

from snaketrain.runtime.file_systems import ARCHIVES, CannotStage, python_in_copy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="folder for the copy, on a disk of this machine; variables such as $TMPDIR are expanded")
    parser.add_argument("words", nargs=argparse.REMAINDER, help="the arguments of Python, after --")
    args = parser.parse_args()
    words = args.words[1:] if args.words[:1] == ["--"] else args.words
    try:
        python = str(python_in_copy(args.folder, ARCHIVES))
    except (CannotStage, OSError) as error:
        print(
            f"warning: compute.stage_environment on {platform.node()}: {error}. Python is started from {sys.prefix}.",
            file=sys.stderr,
            flush=True,
        )
        python = sys.executable
    os.execv(python, [python, *words])


if __name__ == "__main__":
    main()
