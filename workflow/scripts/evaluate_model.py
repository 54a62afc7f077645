"""Evaluate the selected checkpoint on the development and test set: every example exactly once, on any number of processes."""

import time
from argparse import Namespace
from functools import partial

from snaketrain.evaluation.scoring import ScoredSet, Scoring
from snaketrain.runtime import stages
from snaketrain.runtime.manifests import Manifest, read_manifest, verify
from snaketrain.runtime.model_card import write_card
from snaketrain.runtime.rank_logs import report_failure, start_rank
from snaketrain.runtime.ranks import Ranks, leave
from snaketrain.runtime.stages import by_name
from snaketrain.runtime.strict_json import JsonObject


def arguments() -> Namespace:
    parser = stages.parser_of_evaluation("evaluate_model", __doc__)
    parser.add_argument(
        "--set", nargs="?", metavar="MANIFEST", help="manifest of the test set (default: it is prepared with the training data)"
    )
    return parser.parse_args()


def main(args: Namespace) -> None:
    started, job = time.time(), stages.Job(args.output, args.settings)
    start_rank()
    training, selection, data = (read_manifest(path) for path in (args.training, args.selection, args.data))
    model, test = (read_manifest(path) if path else None for path in (args.model, args.set))
    sets = [ScoredSet("dev", data, "dev"), ScoredSet("test", test or data, "test")]
    if Ranks.of_environment().rank == 0:
        verify(*filter(None, (selection, model, test)))
        verify(data, wanted=lambda name: name.startswith(("dev", "test")))
    scoring, weights = Scoring(args, job.given, training, data, model), selection.facts["weights"]
    if missing := [each for each in sets if not scoring.stored(weights, each)]:
        scoring.score(selection.folder / "model", weights, missing, args.run_name)
        scoring.close()
    if Ranks.of_environment().rank > 0:  # rank 0 alone writes the results
        return
    files = [file for each in sets for file in scoring.write_results(weights, each)]
    inputs = {"selection": selection.content, "data": data.content} | ({"set": test.content} if test else {})
    facts = {"test": source_of(test), "splits": test.facts["splits"]} if test else {}
    job.finish(inputs, files, {"run": args.run_name} | facts, started)
    scoring.keep_only(*((weights, each) for each in sets))
    write_card(training, data, selection)


def source_of(test: Manifest) -> JsonObject:
    """The settings of a test set that is prepared on its own, which are not among those of the training."""
    return {key: value for key, value in by_name(test.settings).items() if key.startswith("data.test.") or key == "data.limit_test"}


if __name__ == "__main__":
    args = arguments()
    folder = args.output.parent
    stages.run(partial(main, args), folder, partial(report_failure, "evaluation", folder), leave)
