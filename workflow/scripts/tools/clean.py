"""Delete what no run of the configurations needs: results of runs that they no longer name, prepared data, fetched files and models, and
trainings that newer ones have superseded.

It lists them with their sizes, and asks; --yes does not ask. Name every configuration whose results are in this folder: what belongs to
another one would be deleted.
"""

import argparse
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the package lies

from snaketrain.config.errors import ConfigurationError
from snaketrain.config.files import read_configuration
from snaketrain.orchestration.names import RESULTS
from snaketrain.orchestration.pipeline import Pipeline
from snaketrain.orchestration.submissions import Submissions
from snaketrain.runtime.ownership import living_process
from snaketrain.slurm.client import Slurm, SlurmError, jobs_here


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE", help="the configurations whose results are kept, in YAML or JSON")
    parser.add_argument("--yes", action="store_true", help="delete without asking")
    args = parser.parse_args()
    try:
        found = unneeded([Pipeline(read_configuration([file])) for file in args.files])
    except ConfigurationError as error:
        raise SystemExit(str(error)) from None
    if not found:
        print("Nothing to delete.")
        return
    total = 0
    for folder in found:
        size = sum(path.lstat().st_size for path in folder.rglob("*"))
        total += size
        print(f"{size / 1e6:10.1f} MB  {folder}", flush=True)
    if not args.yes and not agreed(f"Delete {total / 1e6:.1f} MB? [y/N] "):
        print(f"{total / 1e6:.1f} MB; nothing was deleted" + ("." if sys.stdin.isatty() else "; --yes deletes them."))
        return
    if busy := running():
        raise SystemExit(f"{busy}: a job works here. Wait for it, or end it with `snaketrain cancel`.")
    for folder in found:
        (folder / "manifest.json").unlink(missing_ok=True)  # first: half a folder must not pass for a result
        shutil.rmtree(folder)
    print(f"Deleted {total / 1e6:.1f} MB.")


def agreed(question: str) -> bool:
    try:
        return sys.stdin.isatty() and input(question).strip().lower() in ("y", "yes")
    except (EOFError, KeyboardInterrupt):
        print()
        return False


def unneeded(pipelines: list[Pipeline]) -> list[Path]:
    """Folders such as results/runs/NAME and results/data/NAME in which no stage of these works; of the others what is superseded."""
    stages = [stage for pipeline in pipelines for stage in pipeline.stages.values()]
    needed = {path for stage in stages for job in stage.jobs for path in Path(stage.manifest(job)).parents}
    needed |= {path for stage in stages for path in stage.keeps}
    kinds = {Path(RESULTS) / stage.folder.partition("/")[0] for stage in stages if "{" in stage.folder}
    known = [folder for kind in kinds for folder in kind.glob("[!.]*/")]
    superseded = [folder / "superseded" for folder in known if folder in needed and (folder / "superseded").is_dir()]
    return sorted([*superseded, *(folder for folder in known if folder not in needed)])


def running() -> Path | None:
    """A run at which a process or a job of SLURM works."""
    slurm = Slurm()
    try:
        if Submissions().latest() and slurm.is_installed() and jobs_here(slurm):
            return Path()
    except SlurmError as error:
        raise SystemExit(str(error)) from None
    return next((path.parent for path in Path(RESULTS).glob("runs/*/training") if living_process(path)), None)


if __name__ == "__main__":
    main()
