"""Stage: bring the files of a model or a tokenizer to where the later stages, which may have no internet, find them."""

import time
from argparse import Namespace
from functools import partial

from snaketrain.config.runs import from_strings
from snaketrain.config.schema import Source
from snaketrain.data.sources.fetching import describe, fetch
from snaketrain.runtime import stages


def main(args: Namespace) -> None:
    started, job = time.time(), stages.Job(args.output, args.settings)
    source = Source.model_validate(from_strings(job.given.settings)["source"])
    try:
        names = fetch(source, job.folder / "files")
    except ValueError as error:
        raise SystemExit(f"fetch_model: {error}") from None
    checked = f", {len(source.sha256)} verified" if source.sha256 else ""
    print(f"fetch_model: {len(names)} files of {describe(source)}{checked}")
    job.finish({}, [f"files/{name}" for name in names], {"files": names}, started)


if __name__ == "__main__":
    args = stages.parser("fetch_model", __doc__).parse_args()
    stages.run(partial(main, args), args.output.parent)
