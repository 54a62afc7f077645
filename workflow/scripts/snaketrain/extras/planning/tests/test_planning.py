"""The planner's figures against real steps, sums by hand, and a strategy that holds more than others."""

import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import pytest
from pipeline.workspace import configuration, snakemake, write_configuration

from snaketrain.checking.planned import NotPlannable, _published, planned_data, planned_model
from snaketrain.config.schema import Settings, Use
from snaketrain.extras.planning import page
from snaketrain.extras.planning.estimates import Estimate, plan_run
from snaketrain.extras.planning.footprints import World
from snaketrain.extras.planning.ledger import Ledger
from snaketrain.extras.planning.proposals import candidates, described, proposal
from snaketrain.extras.planning.rates import rate_of
from snaketrain.extras.planning.tracing import largest_shares, step, trace, watched
from snaketrain.models.weights import save_weights
from snaketrain.tasks.causal_lm import CausalLm
from snaketrain.training.building import build, make_task, make_train_state, start_strategy

pytestmark = pytest.mark.lengthy

LLAMA = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.fixture
def llama(tiny_tokenizer):
    """The settings of a language model, with changes by dotted names."""

    def settings(changes: dict | None = None, **sizes) -> Settings:
        raw = {
            "data": {"train": {"path": "x.csv"}, "label": None, "max_length": 64, "tokenizer": {"path": str(tiny_tokenizer)}},
            "model": {"use": "transformers.LlamaForCausalLM", "arguments": LLAMA | sizes},
            "train": {"task": "causal_lm", "block_length": 64, "batch_size": 8, "steps": 3, "warmup": 0},
            "compute": {"device": "cpu"},
        }
        for name, value in (changes or {}).items():
            section, key = name.split(".")
            raw[section][key] = value
        return Settings.model_validate(raw)

    return settings


def planned(run: Settings, probed: bool = False) -> Estimate:
    """Probing what a language model attends to takes half of the time of a plan, and has tests of its own."""
    with nullcontext() if probed else patch.object(CausalLm, "probe"):
        return plan_run(run, Path("results"))


def test_memory_of_states_matches_theory(llama):
    whole = planned(llama(), probed=True)
    bytes_of_model = 4 * whole.footprint.parameters
    update = whole.footprint.moments["update"]
    assert update["parameters"] == pytest.approx(bytes_of_model, rel=0.01)  # with rotary tables
    assert update["gradients"] == bytes_of_model
    assert update["optimizer"] == pytest.approx(2 * bytes_of_model, rel=0.01)
    assert whole.footprint.weights == bytes_of_model
    assert whole.footprint.optimizer_state == pytest.approx(2 * bytes_of_model, rel=0.01)
    shard = planned(llama({"train.strategy": "fsdp", "compute.processes": 4})).footprint.moments["update"]
    assert [shard[part] / update[part] for part in ("gradients", "optimizer")] == pytest.approx([0.25, 0.25], rel=0.02)
    tokens, attention = 8 * 64, 14 * 64 * 64 * 2  # of each token; the backward pass computes its scores again
    in_matrices = whole.footprint.parameters - 24 * 64
    assert whole.footprint.flops == pytest.approx((6 * in_matrices + attention) * tokens, rel=0.01)


def test_weights_beside_adapters_have_no_gradients_and_take_4_bits_where_asked_for(llama, tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    LlamaForCausalLM(LlamaConfig(**LLAMA, vocab_size=64)).save_pretrained(tmp_path / "weights")
    source, kinds = {"path": str(tmp_path / "weights")}, ({}, {"quantize": "nf4"})
    runs = [llama({"model.source": source, "model.adapters": {"target_modules": "all-linear", **kind}}) for kind in kinds]
    plain, quantized = (planned(run).footprint for run in runs)
    saved = plain.moments["update"]["parameters"] - quantized.moments["update"]["parameters"]
    in_layers = LLAMA["num_hidden_layers"] * (3 * 64 * 64 + 3 * 64 * 128)  # keys and values have half of the heads
    assert saved == in_layers * (32 - 4.5) / 8
    assert plain.weights == quantized.weights == plain.moments["update"]["gradients"]  # of the adapters


def test_selected_weights_that_are_tied_need_not_be_trained_beside_adapters(llama, tmp_path):
    """They are saved under the first of their names by the alphabet, which is not the first one in the module."""
    from transformers import LlamaConfig, LlamaForCausalLM

    module = LlamaForCausalLM(LlamaConfig(**LLAMA, vocab_size=64, tie_word_embeddings=True))
    module.config.save_pretrained(tmp_path)
    save_weights(module, tmp_path, "model")
    run = llama({"model.source": {"path": str(tmp_path)}, "model.adapters": {"r": 2, "target_modules": ["q_proj"]}})
    assert planned(run).footprint.moments["update"]["gradients"] == LLAMA["num_hidden_layers"] * 2 * (64 + 64) * 4


def test_fsdp_frees_the_blocks_that_it_gathered(llama):
    """So the number of gathered blocks does not grow with the depth."""
    few, many = (
        planned(llama({"train.strategy": "fsdp", "compute.processes": 4, "train.recompute_activations": True}, num_hidden_layers=layers))
        for layers in (2, 8)
    )
    assert many.footprint.moments["forward"]["exchange"] == pytest.approx(few.footprint.moments["forward"]["exchange"], rel=0.05)


def test_a_real_step_has_the_same_peak(llama, tmp_path):
    run = llama({"train.accumulate": 2, "train.recompute_activations": True})
    data = planned_data(run, Path("results"), tmp_path)
    expected = trace(run, planned_model(run, None), data, World(1), "fp32").footprint
    strategy = start_strategy(run.train, "cpu", "fp32")
    shares = largest_shares(run, data, 1)
    with Ledger() as ledger:
        task = make_task(run.train, data.facts)
        state = make_train_state(task, run.train, build(task, run.train, run.model, None, data.facts), strategy)
        with watched(state, ledger):
            for _ in range(2):
                first = len(ledger.events)
                step(state, shares.training, ledger)
    real = {phase: sum(parts.values()) for phase, parts in ledger.peaks(first).items()}
    found = {phase: sum(parts.values()) for phase, parts in expected.moments.items() if not phase.startswith("evaluation")}
    for phase in ("forward", "loss", "backward", "update"):
        assert found[phase] == pytest.approx(real[phase], rel=0.1), phase


def test_scores_are_kept_by_a_gpu_in_fp32_where_heads_share_keys(llama):
    """As measured on an H100 by `benchmarks/planning.py --gpu`, and neither without shared keys nor in bf16."""
    long = {"train.block_length": 256, "train.batch_size": 2, "compute.device": "cuda", "compute.gpus": 1}

    def activations(precision: str, keys: int) -> float:
        run = llama(long | {"train.precision": precision}, num_key_value_heads=keys)
        return planned(run).footprint.moments["forward"]["activations"]

    scores = 4 * 2 * 4 * 256**2 * 2  # fp32, rows, heads, pairs of tokens, blocks
    assert activations("fp32", 2) > activations("fp32", 4) + 0.9 * scores
    assert activations("bf16", 2) == pytest.approx(activations("bf16", 4), rel=0.1)


@pytest.mark.slow
def test_two_depths_predict_any_depth(llama):
    run = llama({"train.strategy": "fsdp", "compute.processes": 2}, num_hidden_layers=11)
    data_free = planned(run).footprint
    whole = planned(
        llama({"train.strategy": "fsdp", "compute.processes": 2, "train.groups": [{"match": "lm_head*"}]}, num_hidden_layers=11)
    ).footprint
    assert data_free.peak == pytest.approx(whole.peak, rel=0.01)
    assert data_free.parameters == whole.parameters
    assert data_free.flops == pytest.approx(whole.flops, rel=0.001)
    assert data_free.exchanged == pytest.approx(whole.exchanged, rel=0.001)


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy, processes",
    [
        ("ddp", 2),
        ("zero1", 2),
        ({"use": "hsdp", "arguments": {"shard": 4}}, 1024),
        ("tensor_parallel", 2),
        ({"use": "mesh", "arguments": {"context": 2, "tensor": 2, "sequence_parallel": True, "loss_parallel": True}}, 64),
        ({"use": "mesh", "arguments": {"pipeline": 2, "schedule": "interleaved"}}, 64),
    ],
)
def test_each_strategy_has_a_plan(llama, strategy, processes):
    sizes = {"compute.processes": processes, "train.batch_size": 8 * processes, "train.accumulate": 2}
    found = planned(llama({"train.strategy": strategy} | sizes, num_hidden_layers=4 if "pipeline" in str(strategy) else 2))
    assert found.processes == processes
    assert found.footprint.peak > found.footprint.states > 0
    assert any(size > found.footprint.parameters for size in found.footprint.exchanged.values())


def mesh(**arguments) -> dict:
    return {"use": "mesh", "arguments": arguments}


@pytest.mark.slow
def test_stages_of_a_pipeline_share_the_work_and_the_weights(llama):
    """Also of more microbatches than are traced."""
    whole = planned(llama({"train.accumulate": 8}, num_hidden_layers=5)).footprint
    pipeline = {"compute.processes": 2, "train.strategy": mesh(pipeline=2), "train.accumulate": 8}
    found = planned(llama(pipeline, num_hidden_layers=5)).footprint
    assert 2 * found.flops == pytest.approx(whole.flops, rel=0.005)  # each stage computes positions
    assert (found.parameters, found.weights) == (whole.parameters, whole.weights)
    assert found.optimizer_state == pytest.approx(whole.optimizer_state, rel=0.001)
    message = 4 * 64 * 64  # bytes of a microbatch's hidden states, which are sent there, and their gradients back
    assert found.exchanged["send"] == pytest.approx(8 * message, rel=0.01)
    layer = (whole.parameters - 2 * 24 * 64 - 64) / 5
    assert found.moments["update"]["gradients"] == pytest.approx(4 * (3 * layer + 24 * 64), rel=0.01)


@pytest.mark.slow
def test_stages_that_are_split_themselves_are_traced_one_after_the_other(llama):
    """DTensor would take the process groups of the stage before, which are gone."""
    split = {"compute.processes": 4, "train.strategy": mesh(pipeline=2, tensor=2), "train.accumulate": 4}
    whole = {"compute.processes": 2, "train.strategy": mesh(pipeline=2), "train.accumulate": 4}
    few, many = (planned(llama(each, num_hidden_layers=2)).footprint.moments["update"]["parameters"] for each in (split, whole))
    assert few == pytest.approx(many / 2, rel=0.05)


@pytest.mark.slow
def test_the_first_stage_keeps_the_most_microbatches(llama):
    """As many as there are stages, whatever their number."""
    pipeline = {"compute.processes": 4, "train.strategy": mesh(pipeline=4)}
    few, many = (planned(llama(pipeline | {"train.accumulate": number}, num_hidden_layers=4)).footprint for number in (4, 8))
    assert few.moments["forward"]["activations"] == pytest.approx(2 * many.moments["forward"]["activations"], rel=0.1)


MIXTRAL = {"num_local_experts": 4, "num_experts_per_tok": 2}


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "processes"), [({"expert": 2}, 2), ({"expert": 2, "shard": 2}, 4)])
def test_ranks_of_experts_share_them(llama, arguments, processes):
    mixtral = {"model.use": "transformers.MixtralForCausalLM"}
    whole = planned(llama(mixtral, **MIXTRAL)).footprint
    sizes = {"compute.processes": processes, "train.batch_size": 8 * processes}
    found = planned(llama(mixtral | sizes | {"train.strategy": mesh(**arguments)}, **MIXTRAL)).footprint
    assert found.moments["update"]["gradients"] == pytest.approx(whole.moments["update"]["gradients"] / processes, rel=0.02)
    assert found.flops == pytest.approx(whole.flops, rel=0.001)
    pairs, layers, ways = 8 * 64 * 2, 2, 4  # there and back, and their gradients
    assert found.exchanged["alltoall_base"] == pytest.approx(pairs * 64 * 4 * layers * ways, rel=0.01)


OWN = """
import torch  # noqa: E402
from snaketrain.strategies.base import Strategy

class Keeps(Strategy):
    def prepare(self, module, make_optimizer):
        self.copies = [p.detach().clone() for p in module.parameters()]
        return super().prepare(module, make_optimizer)
"""


def test_a_changed_strategy_changes_the_plan(llama, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(OWN)
    usual, own = planned(llama()), planned(llama({"train.strategy": "own.py:Keeps"}))
    assert own.footprint.peak - usual.footprint.peak == 4 * usual.footprint.parameters
    assert own.footprint.parts["other"] - usual.footprint.parts["other"] == 4 * usual.footprint.parameters


def test_what_cannot_be_planned_says_why(llama):
    with pytest.raises(NotPlannable, match="nothing is trained"):
        planned(llama({"train.steps": 0}))
    with pytest.raises(NotPlannable, match=r"model.arguments.hidden_width: LlamaConfig has no such field"):
        planned(llama(hidden_width=3))


OWN_TASK = """
from snaketrain.models.weights import save_weights
from snaketrain.tasks.causal_lm import CausalLm  # noqa: E402

class Own(CausalLm):
    def evaluation_step(self, outputs, batch):
        sums = super().evaluation_step(outputs, batch)
        {statement}
        return sums
"""


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("sums['loss'].item()", None),
        ("sums['loss'].numpy()", None),
        ("['of a single value'][sums['loss'].long().item()]", None),
        ("sums['accuracies']", "KeyError"),
        ("outputs.accuracies", "AttributeError"),
        ("sums['loss'].view(7)", "RuntimeError"),
    ],
)
def test_an_evaluation_may_read_values_and_its_errors_are_reported(llama, tmp_path, monkeypatch, statement, error):
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(OWN_TASK.format(statement=statement))
    run = llama({"train.task": {"use": "own.py:Own"}})
    if error:
        with pytest.raises(NotPlannable, match=error):
            planned(run)
    else:
        assert any(moment.startswith("evaluation") for moment in planned(run).footprint.moments)


def test_fields_of_old_published_files_are_left_out(tmp_path):
    about = {"model_type": "bert", "hidden_size": 32, "gradient_checkpointing": False}  # a field that BertConfig no longer has
    (tmp_path / "config.json").write_text(json.dumps(about))
    use, fields = _published("transformers.AutoModelForSequenceClassification", tmp_path)
    assert use == "transformers.BertForSequenceClassification"
    assert fields["hidden_size"] == 32 and "gradient_checkpointing" not in fields


def test_the_smallest_change_comes_first(llama):
    """Microbatches before recomputed activations before other strategies."""
    estimate = planned(llama({"compute.device": "auto", "compute.gpus": 2, "compute.processes": 2, "compute.memory_gb_of_gpu": 80}))
    limit = (estimate.peak - 1024) / 2**30
    run = estimate.settings.model_copy(update={"compute": estimate.settings.compute.model_copy(update={"memory_gb_of_gpu": limit})})
    tried: list[str] = []
    found = proposal(planned(run), planned, tried.append)
    assert found is not None and found.estimate.fits
    assert described(found.changes) == tried[-1] == "train.accumulate: 2"
    every = [described(changes) for changes in candidates(run)]
    assert every[1] == "train.accumulate: 4"
    assert every.index("train.recompute_activations: true") < every.index("train.strategy: {use: fsdp}")
    assert every.index("train.strategy: {use: fsdp}") < next(n for n, each in enumerate(every) if "compute.processes" in each)


def test_microbatches_are_proposed_up_to_one_example_of_each_group_of_processes(llama):
    """Processes that split matrices work on the same examples, so that there are more of them to divide."""
    run = llama({"train.strategy": "tensor_parallel", "compute.processes": 8, "train.batch_size": 8})
    assert [described(changes) for changes in candidates(run)][:3] == [f"train.accumulate: {number}" for number in (2, 4, 8)]
    data_parallel = run.model_copy(update={"train": run.train.model_copy(update={"strategy": Use(use="fsdp")})})
    assert "accumulate" not in described(next(candidates(data_parallel)))


GPUS = {"compute.device": "auto", "compute.gpus": 2, "compute.processes": 2, "compute.memory_gb_of_gpu": 80}


def test_shards_that_are_offloaded_are_not_on_the_gpu(llama):
    """Else the checks would refuse the very trainings that offload because they do not fit otherwise."""
    on_gpu, offloaded = (
        planned(llama(GPUS | {"train.strategy": {"use": "fsdp", "arguments": {"cpu_offload": offload}}})) for offload in (False, True)
    )
    states = on_gpu.footprint.states
    assert offloaded.footprint.states < 0.01 * states
    assert offloaded.peak == pytest.approx(on_gpu.peak - 1.05 * states, rel=0.01)  # of which 5 % would be lost by fragmentation
    lasting = sum(on_gpu.footprint.lasting.values())
    assert offloaded.host_memory - on_gpu.host_memory == pytest.approx(2 * lasting, rel=0.01)  # of both processes of the node
    assert "beside the offloaded shards" in "\n".join(page.lines("run", offloaded, None))


def test_a_copy_of_each_shard_is_in_the_memory_of_the_host(llama):
    """While it is written, the training continues on the GPU."""
    found = planned(llama(GPUS | {"train.strategy": "fsdp", "compute.checkpoint_format": "sharded"}))
    assert found.host_memory == pytest.approx(found.checkpoint, rel=0.02) and found.host_memory > found.footprint.built * found.builders


def test_an_average_of_the_weights_takes_as_much_as_they_do(llama):
    ema = {"train.callbacks": [{"use": "snaketrain.training.weight_average.Ema"}]}
    fsdp = {"train.strategy": "fsdp", "compute.processes": 2}
    plain, averaged = (planned(llama(fsdp | callbacks)) for callbacks in ({}, ema))
    weights = 4 * plain.footprint.parameters
    assert averaged.peak - plain.peak == pytest.approx(weights / 2, rel=0.02)
    assert averaged.checkpoint - plain.checkpoint == pytest.approx(weights)


def test_no_change_is_proposed_where_none_fits(llama):
    def refuses(_run: Settings) -> Estimate:
        raise NotPlannable("too large")

    assert proposal(planned(llama()), refuses, lambda _words: None) is None


def test_the_number_of_steps_is_unknown_before_the_data_is_prepared(llama):
    """A plan is made nevertheless, also if there are more steps of warm-up than the texts that stand for the data would give."""
    estimate = planned(llama({"train.steps": None, "train.epochs": 2, "train.warmup": 100}))
    assert estimate.steps is None and page.figures(estimate)["flops"] is None
    (line,) = (line for line in page.lines("small", estimate, None) if "steps" in line)
    assert "steps and time are unknown until the data is prepared" in line
    assert any("3 steps, at most" in line for line in page.lines("small", planned(llama()), None)), "where the settings say it"


def test_the_page_shows_sizes_and_assumptions(llama, tmp_path):
    run = llama({"compute.device": "auto", "compute.memory_gb_of_gpu": 0.001})
    estimate = planned(run)
    assert not estimate.fits and estimate.cannot_fit
    text = "\n".join(page.lines("large", estimate, rate_of({"large": estimate}, tmp_path, tflops=100)))
    assert "does NOT fit into 1.0 MiB" in text
    assert "the data is not prepared yet: every text has 64 tokens" in text
    assert "assumed: 20% to 50% of 100 TFLOP/s" in text


@pytest.mark.parametrize(
    ("compute", "advised"), [({"processes": 2}, True), ({"processes": 2, "gpus": 2, "device": "auto"}, False), ({}, False)]
)
def test_processes_that_share_cpus_are_advised_against(llama, compute, advised):
    estimate = planned(llama({"train.strategy": "ddp"} | {f"compute.{name}": value for name, value in compute.items()}))
    assert any("compute.processes: 1, is as fast" in line for line in page.lines("small", estimate, None)) == advised


def test_plan_and_refusal(workspace, tmp_path):
    """`snakemake plan` on finished runs, and the check before any job that refuses a run which cannot fit."""
    folder = tmp_path / "copy"
    shutil.copytree(workspace, folder, symlinks=True)

    printed = snakemake(folder, "plan").stdout
    assert "small: " in printed and "other: " in printed
    assert "the data is not prepared yet" not in printed
    steps = json.loads((folder / "results/runs/small/training/journal.jsonl").read_text().splitlines()[0])["steps"]
    assert printed.count(f"  {steps} steps, ") == 2, "as many as were taken"
    assert "measured in other, small" in printed  # their rates, from the journals of the finished trainings

    config = configuration()
    config["compute"] = {"threads": 1, "memory_gb_of_gpu": 0.5}
    config["runs"] = {"small": {}, "large": {"model.arguments.hidden_size": 128, "model.arguments.intermediate_size": 2**18}}
    write_configuration(folder, config)
    for attempt in ("planned", "stored"):
        refused = snakemake(folder, "--dry-run", check=False)
        assert refused.returncode, attempt
        assert "compute.memory_gb_of_gpu: is 0.5, but each of 1 processes needs" in refused.stderr + refused.stdout
        assert "(run large)" in refused.stderr + refused.stdout and "(run small)" not in refused.stderr + refused.stdout
        assert ("planning the memory of" in refused.stderr) == (attempt == "planned")
    assert len(json.loads((folder / ".snakemake/snaketrain-plans.json").read_text())["plans"]) == 1, "a run that was trained is not planned"
