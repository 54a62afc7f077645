"""Stage: bring files of an evaluation set, or other inputs, to where the stages that read them find them without internet access."""

import time
from argparse import Namespace
from functools import partial

from snaketrain.config.schema import Source
from snaketrain.data.fetching import fetch
from snaketrain.runtime import stages


def main(args: Namespace) -> None:
    started, job = time.time(), stages.Job(args.output, args.settings)
    source = Source.model_validate(job.given.settings["source"])
    try:
        found = fetch(source, job.folder / "files")
    except ValueError as error:
        raise SystemExit(f"fetch_input: {error}") from None
    found.report("fetch_input", source)
    job.finish({}, [f"files/{name}" for name in found.names], {"files": found.names} | found.facts(), started)


if __name__ == "__main__":
    args = stages.parser("fetch_input", __doc__).parse_args()
    stages.run(partial(main, args), args.output.parent)
