"""Syntax errors in a configuration are reported with their line, and never with a traceback."""

import time

import limits
import pytest
from pipeline.workspace import snakemake

from snaketrain.config.errors import ConfigurationError
from snaketrain.config.files import read_configuration
from snaketrain.config.runs import read_runs
from snaketrain.config.sweeps import changes_by_run

WRITTEN = [
    (b"data: {name: x}\ntrain:\n  seed: 1\ndata: {name: y}\n", "lines 1 and 4: `data` is given twice"),
    (b"train:\n  seed: 1\n  epochs: 2\n  seed: 2\n", "lines 2 and 4: `train.seed` is given twice"),
    (b"runs:\n  a: {}\n  b: {}\n  a: {train.seed: 2}\n", "lines 2 and 4: `runs.a` is given twice"),
    (b"train: {groups: [{match: a, match: b}]}\n", "lines 1 and 1: `train.groups.0.match` is given twice"),
    (b"data: {labels: {1: a, 0x1: b}}\n", "`data.labels.1` is given twice"),
    (b"data:\n  where: {code: 010}\n", 'line 2: YAML reads `010` as the number 8. Write "010" in quotes, or 8.'),
    (b"data:\n  labels: {007: bond}\n", 'line 2: YAML reads `007` as the number 7. Write "007" in quotes, or 7.'),
    (b"data:\n  columns: [a, 12:30]\n", 'line 2: YAML reads `12:30` as the number 750. Write "12:30" in quotes, or 750.'),
    (b'{"train": {"seed": 1,\n"seed": 2}}', "lines 1 and 2: `train.seed` is given twice"),
    (b"data:\n  name: x\n\tseed: 1\n", "line 3, column 1: not YAML"),
    (b"data: {name: x\ntrain: 1\n", "line 2"),
    (b"data: *nothing\n", "line 1, column 7: not YAML: found undefined alias"),
    (b"data: {name: caf\xe9}\n", "line 1: byte 0xe9 is not UTF-8"),
    ("data: {name: x}\n".encode("utf-16"), "line 1: byte 0xff is not UTF-8"),
    (b"a: 1\ndata: {name: a\x00b}\n", "line 2: not YAML"),
    (b"data: " + b"[" * 3000 + b"]" * 3000, "nested too deeply"),
    (b"data: " + b"{a: " * 3000 + b"1" + b"}" * 3000, "nested too deeply"),
    (b"a: &a [*a]\n", "cannot be a setting: Circular reference"),
    (b"train: {since: !!binary AAAA}\n", "cannot be a setting: Object of type bytes"),
    (b'train: {seed: "a\\0b"}\n', "cannot be a setting: a NUL byte"),
    (b'{"train": {"seed": "a\\ud800"}}', "cannot be a setting: 'utf-8' codec can't encode"),
    (b"train: {since: !!timestamp soon}\n", "cannot be a setting"),
    (b"- a\n- b\n", 'expects settings with their values, such as `train:`, at the top level, not ["a", "b"]'),
    (b"? [a, b]\n: 1\n", "line 1, column 3: not YAML: found unhashable key"),
    (b"a: !!python/object:os.system {}\n", "line 1, column 4: not YAML: could not determine a constructor"),
    (b"a: 1\n---\nb: 2\n", "line 2, column 1: not YAML"),
]


@pytest.mark.parametrize(("written", "reported"), WRITTEN)
def test_syntax_errors_are_reported_with_their_line(tmp_path, written, reported):
    (tmp_path / "my.yaml").write_bytes(written)
    with pytest.raises(ConfigurationError) as error:
        read_configuration([tmp_path / "my.yaml"])
    assert [reported in problem for problem in error.value.problems] == [True], error.value.problems


@pytest.mark.parametrize("name", ["missing.yaml", "folder", "x" * 5000, "a\0b"])
def test_files_that_cannot_be_read(tmp_path, name):
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_configuration([f"{tmp_path}/{name}"])


def test_merged_anchors_and_repeated_values_are_not_duplicate_keys(tmp_path):
    (tmp_path / "my.yaml").write_text("a: &a {x: 1, y: 2}\nb: {<<: *a, x: 3}\nc: [*a, *a]\n")
    assert read_configuration([tmp_path / "my.yaml"])["b"] == {"x": 3, "y": 2}


def test_a_date_is_a_text(tmp_path):
    (tmp_path / "my.yaml").write_text("data: {where: {day: 2024-01-31}}\n")
    assert read_configuration([tmp_path / "my.yaml"])["data"] == {"where": {"day": "2024-01-31"}}


def test_json_is_read_as_json(tmp_path):
    (tmp_path / "my.json").write_text('{"train":\t{"learning_rate": 1e-4, "clip_norm": null}}')
    assert read_configuration([tmp_path / "my.json"]) == {"train": {"learning_rate": 1e-4, "clip_norm": None}}


def test_the_command_line_is_read_as_yaml_and_comes_last(tmp_path):
    (tmp_path / "one.yaml").write_text("train: {epochs: 2, seed: 1, batch_size: 8}\nselect: {metric: loss}\n")
    (tmp_path / "two.yaml").write_text("train: {seed: 2}\n")
    given = ["train={clip_norm: null, steps: 50, compile: true}", "model={arguments: {hidden_size: 128}}", "select="]
    found = read_configuration([tmp_path / "one.yaml", tmp_path / "two.yaml"], given)
    assert found == {
        "train": {"seed": 2, "batch_size": 8, "clip_norm": None, "steps": 50, "compile": True},  # steps in place of epochs
        "select": None,
        "model": {"arguments": {"hidden_size": 128}},
    }
    with pytest.raises(ConfigurationError, match=r"--config train, lines 1 and 1: `train.seed` is given twice"):
        read_configuration([], ["train={seed: 1, seed: 2}"])


def test_a_run_may_set_an_alternative_of_a_common_setting():
    data = {"train": {"path": "a.csv"}, "tokenizer": {"path": "tokenizer"}}
    runs = read_runs({"data": data, "train": {"epochs": 5}, "runs": {"a": {"train.steps": 7}, "b": {"train": {"steps": 8}}, "c": {}}})
    assert {name: (run.train.steps, run.train.epochs) for name, run in runs.items()} == {"a": (7, 3), "b": (8, 3), "c": (None, 5)}


def test_a_sweep_of_a_million_points_is_refused_at_once():
    axes = {f"train.{name}": list(range(1, 101)) for name in ("seed", "batch_size", "batch_tokens")}
    started = time.process_time()
    with pytest.raises(ConfigurationError, match=r"sweeps.s: makes 1,000,000 runs \(100 x 100 x 100\)"):
        read_runs({"sweeps": {"s": axes}})
    assert time.process_time() - started < limits.seconds(1)


@pytest.mark.parametrize("axes", [{"train.seed": 10_000}, {"train.seed": 100, "train.batch_size": 100}])
def test_expanding_takes_as_long_as_there_are_points(axes):
    def seconds_each(share: float) -> float:
        values = {key: list(range(1, 1 + round(count * share))) for key, count in axes.items()}
        started = time.process_time()
        runs, problems = changes_by_run({"sweeps": {"s": values}})
        assert not problems
        return (time.process_time() - started) / len(runs)

    # of 10,000 points and of 100 or 1,000; comparing every name with all others took 100 and 10 times as long
    assert min(seconds_each(1) for _ in range(2)) < 5 * max(seconds_each(0.1) for _ in range(3))


@pytest.mark.parametrize(
    ("name", "written", "reported"),
    [
        ("config/config.yaml", b"train: {seed: 1}\ntrain: {seed: 2}\n", "config/config.yaml, lines 1 and 2: `train` is given twice"),
        ("config/config.yaml", b"data: {name: caf\xe9}\n", "config/config.yaml, line 1: byte 0xe9 is not UTF-8"),
        ("my.yaml", b"train: {seed: 1}\ntrain: {seed: 2}\n", "my.yaml, lines 1 and 2: `train` is given twice"),
    ],
)
def test_snakemake_reports_errors_without_a_traceback(tmp_path, name, written, reported):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(written)
    done = snakemake(tmp_path, "-n", *(["--configfile", name] if name == "my.yaml" else []), check=False)
    printed = done.stdout + done.stderr
    assert done.returncode and reported in printed and "Traceback" not in printed, printed
