"""Stage: bring the files of a model, a tokenizer, an evaluation set or another input to where later stages find them without internet access."""

import time
from argparse import Namespace
from functools import partial

from snaketrain.config.schema import Source
from snaketrain.data.fetching import fetch, report
from snaketrain.runtime import stages


def main(args: Namespace) -> None:
    started, job = time.time(), stages.Job(args.output, args.settings)
    stage, source = job.given.stage, Source.model_validate(job.given.settings["source"])
    try:
        found = fetch(source, job.folder / "files")
    except ValueError as error:
        raise SystemExit(f"{stage}: {error}") from None
    report(found, stage, source)
    job.finish({}, [f"files/{name}" for name in found.files], {"files": [*found.files]} | found.facts(), started)


if __name__ == "__main__":
    args = stages.parser(None, __doc__).parse_args()
    stages.run(partial(main, args), args.output.parent)
