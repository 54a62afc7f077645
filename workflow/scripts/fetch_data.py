"""Stage: link or download the raw files of all splits, for later stages that may have no internet access.

A dataset class reads its own files: only its name is recorded.
"""

import shutil
import time
from argparse import Namespace
from functools import partial

from snaketrain.config.schema import Examples
from snaketrain.data.fetching import fetch, report
from snaketrain.runtime import stages
from snaketrain.runtime.strict_json import JsonObject


def main(args: Namespace) -> None:
    started, job = time.time(), stages.Job(args.output, args.settings)
    settings = job.given.settings.get("data", {})  # none, if nothing is trained on
    folder = job.folder
    found: dict[str, list[str]] = {}
    classes: dict[str, str] = {}
    left_out: dict[str, JsonObject] = {}
    further = [name for name in settings if "." in name]  # see Data.train_sets_of_extras
    for split in ("train", "dev", "test", *further):
        if settings.get(split) is None:
            shutil.rmtree(folder / split, ignore_errors=True)
            continue
        source = Examples.model_validate(settings[split])
        if source.use:
            shutil.rmtree(folder / split, ignore_errors=True)
            classes[split] = source.use
            print(f"fetch_data: {split}: nothing to fetch, {source.use} is a class")
            continue
        try:
            fetched = fetch(source, folder / split)
        except ValueError as error:
            raise SystemExit(f"data.{split}: {error}") from None
        report(fetched, f"fetch_data: {split}", source)
        found[split] = [*fetched.files]
        left_out |= {split: fetched.facts()["left_out"]} if fetched.left_out else {}
    files = [f"{split}/{name}" for split, names in found.items() for name in names]
    facts = {"files": found, "classes": classes, "left_out": left_out}
    job.finish({}, files, {name: fact for name, fact in facts.items() if fact or name == "files"}, started)


if __name__ == "__main__":
    args = stages.parser("fetch_data", __doc__).parse_args()
    stages.run(partial(main, args), args.output.parent)
