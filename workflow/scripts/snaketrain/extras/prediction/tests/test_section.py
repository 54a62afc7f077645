"""Errors in the section `predict` are reported before any job starts, with all others: where, what, and what to do."""

from collections.abc import Iterator

import pytest
from unit.test_bad_configurations import DATASET, PROMPTS, changed, folder, problems_of  # noqa: F401
from unit.test_invalid_settings import EXTRAS, PLACE, invalid_values, leaves, put, tried

from snaketrain.config.errors import ConfigurationError
from snaketrain.config.schema import Settings
from snaketrain.orchestration.preflight import examine

BAD = [
    ({"predict/new": {}}, "predict.new: names nothing"),
    ({"predict/new": {"path": "trian.csv"}}, "predict.new: path 'trian.csv': no file there", "Did you mean 'train.csv'?"),
    ({"predict/new": {"path": "train.csv", "txt": "a"}}, "predict.new.txt: no such setting. Did you mean 'text'?"),
    ({"predict/new": {"path": "train.csv", "text": "txt"}}, "predict.new.text: ", "train.csv has no column 'txt'. It has: text, label. Did you mean 'text'?"),
    ({"predict/new": {"path": "train.csv", "encoding": "utf-99"}}, "predict.new.encoding: Python knows no encoding 'utf-99'. Usual ones: utf-8"),
    ({"predict/new": {"path": "train.csv", "id": "key"}}, "predict.new.id: ", "train.csv has no column 'key'"),
    ({"predict/new": {"path": "train.csv", "columns": ["text"]}}, "predict.new.columns: is for files without a header, but", "train.csv, line 1 looks like one"),
    ({"predict/new": {"path": "train.csv", "text": ["a", "b"]}}, "predict.new.text names 2 columns, but data.text names 1 (text): name as many"),
    ({"predict/new": {"path": "train.csv", "generate": {}}}, "predict.new.generate: text is generated, which train.task text_classification cannot"),
    ({"predict/new": {"path": "train.csv"}, "data/target": "text", "data/label": None}, "predict: the data has data.target, so that text is generated"),
    ({"predict/new": {"path": "train.csv"}, **PROMPTS, "train/strategy": "fairscale_fsdp"}, "predict.new: train.strategy fairscale_fsdp cannot generate", "Use fsdp"),
    ({"predict/new": {"path": "train.csv", "text": ["a", "b", "c"]}, **PROMPTS}, "predict.new.text: expects"),
    ({"predict/new": {"path": "train.csv", "text": "a"}, **PROMPTS}, "predict.new.text: ", "train.csv has no column 'a'"),
    ({"predict/new": {"path": "train.csv", "text": ["a", "b"]}, "data/messages": "text", "data/label": None}, "predict.new.text names 2 columns, but chats are in one"),
    ({"predict/new.1": {"path": "train.csv"}}, "predict: 'new.1' cannot be a name: files are named after it"),
]  # fmt: skip
WRITES = {"data/label": None, "data/target": "label", "train/task": "seq2seq", "model/use": "transformers.T5ForConditionalGeneration"}


@pytest.mark.parametrize(("changes", "words"), [(change, words) for change, *words in BAD], ids=[words[0][:60] for _, *words in BAD])
def test_problem_and_remedy_are_reported(folder, changes, words):  # noqa: F811
    found = problems_of(changes)
    (reported,) = (problem for problem in found if problem.startswith(words[0]))
    assert all(word in reported for word in words)


def test_a_problem_that_runs_share_is_reported_once_and_beside_those_of_the_core(folder):  # noqa: F811
    runs = {"a": {"train.seed": 1}, "b": {"train.seed": 2}, "c": {"select.metric": "accurcy"}}
    found = problems_of({"predict/new": {"path": "trian.csv"}, "runs": runs})
    assert sorted(problem.partition(":")[0] for problem in found) == ["predict.new", "select.metric"]


def test_each_pair_with_another_setting_is_accepted_or_refused_at_a_setting(folder):  # noqa: F811
    (folder / "test.csv").write_text((folder / "train.csv").read_text().replace("film", "movie"))
    raised = []
    for what, change in EXTRAS.items():
        config = changed({"predict/some": {"path": "test.csv"}})
        for place, value in change.items():
            config = put(config, tuple(place.split(".")), value)
        try:
            examine(config)
        except ConfigurationError as error:
            raised += [f"{what}: {problem}" for problem in error.problems if not PLACE.match(problem)]
    assert raised == []


def battery() -> Iterator[tuple[str, str, dict]]:
    for path, _, kind, limits in leaves(Settings):
        if path[0] == "predict" and len(path) > 1:  # a section without a setting is none
            base = changed({"predict/some": {"path": "train.csv"}} | (WRITES if "generate" in path[:-1] else {}))
            yield from ((".".join(path), what, put(base, path, value)) for what, value in invalid_values(kind, limits))


def test_hardly_any_invalid_value_is_accepted(folder):  # noqa: F811
    configurations = list(battery())
    accepted, failed, _ = tried(configurations)
    assert failed == [] and len(configurations) > 100
    assert accepted == ["predict.some.generate.length_penalty: negative"]
