"""Copy the model that a run selected, with its tokenizer, settings and model card, to a folder of its own: `snaketrain export baseline my-model`.

The files are compared with the digests that selection recorded. A transformers model is then loaded by `from_pretrained("my-model")`.
"""

import argparse
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the package lies

from snaketrain.runtime.manifests import MODEL, selected_model


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
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SystemExit(f"{folder}: is there already and not empty. Name another folder, or delete it.")
    manifest, names = selected_model(results, run)
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
