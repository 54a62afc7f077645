"""Copy the model that a run selected, with its tokenizer, settings and model card, to a folder of its own: `snaketrain export baseline my-model`.

The files are compared with the digests that selection recorded. A transformers model is then loaded by `from_pretrained("my-model")`.
"""

import argparse
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the package lies

from snaketrain.runtime.manifests import damage, described, read_manifest

MODEL = "model/"  # in the folder of a selection


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="RUN", help="name of the run")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="a new folder, or an empty one")
    parser.add_argument(
        "--results", type=Path, default=Path("results"), metavar="FOLDER", help="results folder of the workflow (default: results)"
    )
    args = parser.parse_args()
    export(args.results, args.run, args.folder)


def export(results: Path, run: str, folder: Path) -> None:
    path = results / "runs" / run / "selection/manifest.json"
    if not path.exists():
        there = ", ".join(sorted(each.parents[1].name for each in results.glob("runs/*/selection/manifest.json"))) or "none"
        raise SystemExit(f"{path}: is not there, so {run!r} has selected no model. Runs that have: {there}.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SystemExit(f"{folder}: is there already and not empty. Name another folder, or delete it.")
    manifest = read_manifest(path)
    if found := damage(manifest, lambda name: name.startswith(MODEL)):
        raise SystemExit(f"{described(manifest, found)} Start snakemake again, which restores it.")
    card = f"{MODEL}README.md"  # with the results of later stages, so it is not one of selection's files
    names = [name for name in manifest.files if name.startswith(MODEL)] + [card] * (manifest.folder / card).exists()
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    for name in names:
        target = partial / name.removeprefix(MODEL)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(manifest.folder / name, target)
    partial.replace(folder)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder}: {len(names)} files, {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
