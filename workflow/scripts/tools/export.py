"""Copy what a colleague needs of a run to a folder, or an archive, that opens anywhere: `snaketrain export baseline my-model`.

The folder has the selected model with its tokenizer and model card, so that `from_pretrained("my-model")` loads it, and in `run/` the evaluation,
the journal, the page of the comparison, your own code as the training used it, and `run.yaml`, a configuration of this run alone. The model's files
are compared with the digests that selection recorded; the card loads the model from the new folder.
"""

import argparse
import re
import shutil
import sys
import tempfile
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the package lies

from snaketrain.runtime.manifests import MODEL, read_checked, read_manifest, selected_model
from snaketrain.runtime.strict_json import JsonObject

ARCHIVES = {".tar.gz": "gztar", ".zip": "zip"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="RUN", help="name of the run")
    parser.add_argument(
        "target", type=Path, metavar="TARGET", help="a new folder, or an empty one; or a new archive, named *.tar.gz or *.zip"
    )
    parser.add_argument(
        "--results", type=Path, default=Path("results"), metavar="FOLDER", help="results folder of the workflow (default: results)"
    )
    args = parser.parse_args()
    export(args.results, args.run, args.target)


def export(results: Path, run: str, target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise SystemExit(f"{target}: is there already and not empty. Use another name, or delete it.")
    manifest, names = selected_model(results, run)
    target.parent.mkdir(parents=True, exist_ok=True)
    suffix = next((each for each in ARCHIVES if target.name.endswith(each)), "")
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as beside:
        folder = Path(beside, target.name.removesuffix(suffix))
        for name in names:
            copy(manifest.folder / name, folder / name.removeprefix(MODEL))
        if (card := folder / "README.md").is_file():
            here = re.compile(rf'"[^"]*runs/{re.escape(run)}/selection/model')
            card.write_text(here.sub(lambda _: f'"{folder.name}', card.read_text(encoding="utf-8")), encoding="utf-8")
        copy_record(results, run, folder / "run")
        if suffix:
            folder = Path(shutil.make_archive(f"{beside}/archive", ARCHIVES[suffix], beside, folder.name))
        folder.replace(target)
    size = sum(path.stat().st_size for path in (target, *target.rglob("*")) if path.is_file())
    print(f"{target}: the model in {len(names)} files, and how it was made, {size / 1e6:.1f} MB")


def copy_record(results: Path, run: str, record: Path) -> None:
    """What tells how the model was made, and how good it is. Snakemake has made the evaluation and the comparison only after the selection."""
    folder = results / "runs" / run
    training = folder / "training"
    given = [training / name for name in ("run.json", "journal.jsonl", "packages.txt", "code.diff")]
    for path in (*given, *sorted((training / "code").rglob("*"))):
        if path.is_file():
            copy(path, record / path.relative_to(training))
    for path in sorted(folder.glob("evaluation/*.*")):
        if not path.name.startswith("."):
            copy(path, record / "evaluation" / path.name)
    if (page := results / "comparison/index.html").is_file():
        copy(page, record / "comparison.html")
    (record / "run.yaml").write_text(
        "# This run alone, with the settings that decided its results. In the project: snaketrain run run.yaml\n"
        + yaml.safe_dump(configuration(folder, run), sort_keys=False, allow_unicode=True),
        encoding="utf-8",
    )


def configuration(folder: Path, run: str) -> JsonObject:
    """The settings that decided the results of its stages; run.json has those of the data and the training."""
    settings: JsonObject = read_checked(folder / "training/run.json")["settings"]
    for stage in ("selection", "evaluation"):
        if (path := folder / stage / "manifest.json").is_file():
            settings = read_manifest(path).settings | settings
    return settings | {"runs": {run: {}}}


def copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


if __name__ == "__main__":
    main()
