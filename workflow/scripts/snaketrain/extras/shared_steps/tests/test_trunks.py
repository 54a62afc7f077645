"""Which first steps runs share, planned from their settings, against the learning rates of real schedules."""

import random
import shlex
from pathlib import Path
from typing import Any

import pytest

from snaketrain.config.schema import Train
from snaketrain.extras.shared_steps.planning import shared, stretches
from snaketrain.extras.shared_steps.stages import TrainTrunk
from snaketrain.extras.shared_steps.trunks import Trunks, record_trunk
from snaketrain.orchestration.pipeline import Pipeline
from snaketrain.orchestration.repairing import Repairs
from snaketrain.orchestration.rule_values import varying
from snaketrain.runtime.manifests import Manifest, read_checked, write_checked, write_json, write_manifest
from snaketrain.training.plan import Plan

DATA = {"train": {"path": "a.csv"}, "tokenizer": {"path": "tokenizer"}}
DECAYS, LENGTHS = (100, 200, 300, 400), (1000, 2000, 3000)


def decay(length: float, **arguments: float) -> dict[str, Any]:
    return {"use": "warmup_stable_decay", "arguments": {"decay": length, **arguments}}


def pipeline(axes: dict[str, list[Any]], **sections: Any) -> Pipeline:
    config = {"data": DATA, "sweeps": {"s": axes}} | sections
    return Pipeline(config | {"train": {"warmup": 20} | sections.get("train", {})}, reads_files=False)


def tree(decays=DECAYS, lengths=LENGTHS, **sections: Any) -> Pipeline:
    return pipeline({"train.schedule": [decay(each) for each in decays], "train.steps": list(lengths)}, **sections)


def trunks_of(pipeline: Pipeline) -> Trunks:
    stage = pipeline.stages["train_trunk"]
    assert isinstance(stage, TrainTrunk)
    return stage.trunks


def trunk_of(pipeline: Pipeline, run: str) -> list[str]:
    """What the rule that trains a run reads besides its data and its weights."""
    return pipeline.added("train_model", run)["trunk"]


def drawn(draw: random.Random) -> Train:
    schedules = ["constant", "linear", "cosine", decay(0.25), decay(10), decay(10, lowest=0.1), decay(12), "inverse_square_root"]
    schedules += [{"use": "inverse_square_root", "arguments": {"stable": stable}} for stable in (7, 15)]
    return Train(steps=draw.choice((30, 40, 60)), warmup=draw.choice((0, 5, 8, 0.1)), schedule=draw.choice(schedules))


def test_shared_steps_are_those_with_the_same_rates():
    draw, lengths = random.Random(0), [1] * 1000
    shares = 0
    for _ in range(300):
        one, other = drawn(draw), drawn(draw)
        rates = [
            [plan.learning_rate_at(step) for step in range(1, plan.steps + 1)] for plan in (Plan.of(each, lengths) for each in (one, other))
        ]
        equal = next((step for step, (ours, theirs) in enumerate(zip(*rates, strict=False)) if ours != theirs), min(map(len, rates)))
        found = shared(stretches(one), stretches(other))
        # the first steps of two warm-ups share the rate 0, and one schedule may reach the peak where another leaves it
        assert found == equal or (found == 0 and equal == 1) or found == equal - 1, (one, other)
        shares += found > 5
    assert shares > 50


@pytest.mark.parametrize("train", [
    {"epochs": 3}, {"steps": 40, "schedule": "torch.optim.lr_scheduler.ConstantLR"}, {"steps": 40, "schedule": "mine.py:mine"},
    {"steps": 40, "groups": [{"match": "*", "schedule": "constant"}]}, {"steps": 0},
])  # fmt: skip
def test_no_trunk_is_planned_if_the_rates_are_unknown(train):
    assert stretches(Train(**train)) == ()


def test_a_decay_in_steps_ends_at_the_lowest_rate():
    plan = Plan.of(Train(steps=100, warmup=10, schedule=decay(40, lowest=0.1), learning_rate=1.0), [1] * 1000)
    rates = [plan.learning_rate_at(step) for step in range(1, 102)]
    assert rates[10:61] == [1.0] * 51 and rates[61] < 1.0 and rates[80] == pytest.approx(0.55) and rates[100] == pytest.approx(0.1)


@pytest.mark.parametrize(("train", "words"), [
    ({"steps": 100, "schedule": decay(95), "warmup": 10}, "are more than the training has"), ({"steps": 100, "schedule": decay(9.5)}, "is neither a share"),
])  # fmt: skip
def test_a_decay_must_fit(train, words):
    with pytest.raises(ValueError, match=words):
        Train(**train)
    if "more" in words:
        with pytest.raises(SystemExit, match=words):
            Plan.of(Train(**{key: value for key, value in train.items() if key != "steps"}, epochs=1, batch_size=10), [1] * 1000)


def test_four_decays_of_three_lengths_take_a_third_of_the_steps():
    plan = trunks_of(tree()).plan
    first, second = plan.trunks.values()
    assert first.branch_steps == (601, 701, 801, 901) and first.parent is None
    assert second.branch_steps == (1601, 1701, 1801, 1901, 2601, 2701, 2801) and second.parent == first.name
    steps = second.last  # of both, since the second continues the first
    for run, trunk in plan.of_run.items():
        settings = tree().runs[run].train
        leaves = settings.steps - settings.decay_steps + 1
        steps += settings.steps - max(step for step in (*first.branch_steps, *second.branch_steps) if step <= leaves)
        assert trunk == (first if settings.steps == 1000 else second).name
    assert steps < 0.25 * 4 * sum(LENGTHS)


@pytest.mark.parametrize("changes", [
    {"train": {"early_stopping": {"patience": 3}}}, {"shared_steps": {"at_least": None}}, {"shared_steps": {"at_least": 20_000}},
    {"train": {"callbacks": ["snaketrain.training.weight_average.Ema"]}}, {"train": {"task": "not_there.py:Task"}},
])  # fmt: skip
def test_runs_that_train_by_themselves(changes):
    assert trunks_of(tree()).known and not trunks_of(tree(**changes)).known


def test_runs_that_differ_in_anything_else_share_nothing():
    swept = pipeline({"train.schedule": [decay(100), decay(200)], "train.steps": [3000], "train.seed": [0, 1]})
    one, other = trunks_of(swept).known.values()
    assert swept.runs[one.run].train.seed != swept.runs[other.run].train.seed and one.name != other.name
    assert not trunks_of(pipeline({"train.learning_rate": [1e-3, 2e-3]}, train={"steps": 3000})).known
    assert not trunks_of(pipeline({"train.schedule": ["linear", "cosine"]}, train={"steps": 3000})).known


def test_a_run_that_leaves_early_does_not_wait():
    """Its few steps would save less than a job costs."""
    found = trunks_of(pipeline({"train.schedule": [decay(100), decay(200), "linear"]}, train={"steps": 3000})).plan
    (trunk,) = found.trunks.values()
    assert trunk.branch_steps == (2801,) and len(found.of_run) == 2


def test_language_models_share_steps_and_tasks_that_say_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(
        "from snaketrain import Task\nclass Plain(Task):\n    pass\nclass Stateful(Task):\n    def state_dict(self):\n        return {}\n"
        "class Declared(Stateful):\n    evaluates_only = True\n    def state_dict(self):\n        return {}\n"
        "class Harmless(Task):\n    evaluates_only = True\n    def validation_epoch(self, modules, batches):\n        pass\n"
    )
    for task, shares in {
        "causal_lm": True,
        "mine.py:Plain": True,
        "mine.py:Stateful": False,
        "mine.py:Declared": False,
        "mine.py:Harmless": True,
    }.items():
        assert bool(trunks_of(tree(train={"task": task})).known) == shares, task


def test_a_run_that_is_added_changes_no_trunk():
    before, after = trunks_of(tree()), trunks_of(tree(decays=(*DECAYS, 500), lengths=(*LENGTHS, 5000)))
    names = {trunk.last: name for name, trunk in before.known.items()}
    assert {trunk.last: name for name, trunk in after.known.items()}[901] == names[901]
    assert before.settings(names[901]) == after.settings(names[901])


def test_a_trunk_has_the_options_of_its_run_and_an_experiment_of_its_own():
    made = short()
    (trunk,), stage = trunks_of(made).known, made.stages["train_trunk"]
    assert isinstance(stage, TrainTrunk)
    words = shlex.split(stage.options(trunk))
    assert "--experiment=snaketrain-trunks" in words and words[-2:] == ["--branch-steps", "2801"]
    assert [made.added("train_model", run) for run in made.runs] == [{"trunk": [f"results/trunks/{trunk}/training/manifest.json"]}] * 2


# --- in a workspace


def begin(pipeline: Pipeline, kind: str, name: str, trunk: str | None, finished: bool = True) -> None:
    folder = Path("results") / kind / name / "training"
    stage, run = "train_model", name if kind == "runs" else trunks_of(pipeline).known[name].run
    planned = pipeline.stages[stage].planned(run)
    write_checked(folder / "run.json", {"settings": planned.settings, "code": planned.code, "fingerprint": "1"})
    if trunk:
        write_checked(folder / "trunk.json", {"trunk": trunk})
    if finished:
        write_json(folder / "manifest.json", {})


def short() -> Pipeline:
    return tree(decays=DECAYS[:2], lengths=[3000])


def test_a_training_keeps_its_trunk_whatever_is_planned(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (trunk,), (first, second) = trunks_of(short()).known, short().runs
    assert trunk_of(short(), first) == trunk_of(short(), second) == [f"results/trunks/{trunk}/training/manifest.json"]
    begin(short(), "trunks", trunk, None)
    begin(short(), "runs", first, trunk)
    alone = tree(decays=DECAYS[:1], lengths=[3000])
    assert not trunks_of(alone).known and trunk_of(alone, first), "it is there, so that nobody has to make it"
    for changed in (tree(decays=DECAYS, lengths=LENGTHS), short(), tree(shared_steps={"at_least": None}, compute={"minutes": 7})):
        assert trunk_of(changed, first) == [f"results/trunks/{trunk}/training/manifest.json"]
    assert not trunks_of(tree(train={"seed": 7})).has_begun(first), "of other settings"


def test_a_mark_of_one_run_is_not_that_of_all(tmp_path, monkeypatch):
    """A trunk is an old input of the run that continued it, and a new one of the other."""

    class Ancient(str):
        flags = {"ancient": True}  # noqa: RUF012

    monkeypatch.chdir(tmp_path)
    (trunk,), (first, second) = trunks_of(short()).known, short().runs
    begin(short(), "trunks", trunk, None)
    begin(short(), "runs", first, trunk)
    made = short()
    made.ancient = Ancient
    inputs = varying(made.runs, lambda run: trunk_of(made, run))
    assert [isinstance(inputs([run])[0], Ancient) for run in (first, second)] == [True, False]
    begin(short(), "runs", second, trunk)
    made = short()
    made.ancient = Ancient
    assert varying(made.runs, lambda run: trunk_of(made, run)) == trunk_of(made, first), "one value for all"


def test_a_deleted_trunk_is_not_made_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (trunk,), (first, second) = trunks_of(short()).known, short().runs
    begin(short(), "runs", first, trunk)
    assert trunk_of(short(), first) and not trunk_of(short(), second)
    assert trunk in trunks_of(tree(decays=DECAYS[:1], lengths=[3000])).known, "Snakemake must find a rule for it"


def test_a_training_that_resumed_without_its_deleted_trunk_stays_without(tmp_path, monkeypatch):
    """Snakemake would repeat a finished training whose inputs have become others."""
    monkeypatch.chdir(tmp_path)
    (trunk,), (first, _) = trunks_of(short()).known, short().runs
    begin(short(), "runs", first, trunk, finished=False)
    assert not trunk_of(short(), first)
    record_trunk(Path("results/runs", first, "training"), None)
    begin(short(), "runs", first, None)
    assert not trunk_of(short(), first)


def test_a_trunk_is_awaited_by_trainings_that_have_not_begun(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second = trunks_of(tree()).known
    assert trunks_of(tree()).is_awaited(first) and trunks_of(tree()).is_awaited(second)
    begin(tree(), "trunks", first, None)
    for run, trunk in trunks_of(tree()).plan.of_run.items():
        if trunk == first:
            begin(tree(), "runs", run, trunk)
    assert trunks_of(tree()).is_awaited(first), "the second trunk continues it"
    begin(tree(), "trunks", second, first)
    assert not trunks_of(tree()).is_awaited(first) and trunks_of(tree()).is_awaited(second)


def test_a_trunk_is_up_to_date_whichever_run_it_was_made_with(tmp_path, monkeypatch):
    """Written by a SLURM job that outlived its workflow, say; another run of the same steps may come first now."""
    monkeypatch.chdir(tmp_path)
    (trunk,) = trunks_of(short()).known
    begin(short(), "trunks", trunk, None)
    manifest = short().manifest("train_trunk", trunk)
    write_manifest(manifest, Manifest("train_model", "of another run", {}, {}, {}))
    reports: list[str] = []
    repairs = Repairs(short(), reports.append, [manifest])
    monkeypatch.setattr(TrainTrunk, "reads", lambda *_: {})
    assert not repairs.needed("train_trunk", trunk) and not reports
    about = Path(manifest).with_name("run.json")
    write_checked(about, read_checked(about) | {"code": {"x": "1"}})
    assert Repairs(short(), reports.append, [manifest]).needed("train_trunk", trunk), "its code has changed"
    assert "was written while no workflow ran" in reports[0]


def test_trainings_that_began_without_a_trunk_finish_without_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second = short().runs
    begin(short(), "runs", first, None, finished=False)
    assert not trunk_of(short(), first) and not trunk_of(short(), second), "one training would gain nothing by a trunk"
    begin(short(), "runs", second, None)
    about = Path("results/runs", second, "training/run.json")
    assert trunks_of(short()).has_begun(second)
    write_checked(about, read_checked(about) | {"code": {"x": "1"}})
    assert not trunks_of(short()).has_begun(second), "its code has changed"
