"""What tasks that predict tokens have in common: the loss of each token, generated answers, and the metrics of both."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from torch import Tensor, nn

from snaketrain.config.schema.generation import TEXT_METRICS
from snaketrain.models.logit_chunks import NO_TARGET
from snaketrain.models.pretrained import describe_model
from snaketrain.models.token_losses import token_losses
from snaketrain.runtime.json_types import JsonObject
from snaketrain.tasks.base import Batch, Columns, Modules, Task
from snaketrain.tasks.generation import Answers, Generation, stop_at_end

SAMPLES = 4  # examples that are shown with their answers after an evaluation


class TokenOutputs(NamedTuple):
    """The logits at each position, and the tokens that they should predict: NO_TARGET where none is learnt."""

    logits: Tensor
    targets: Tensor
    answers: Answers | None = None  # if the task generates


class TokenPrediction(Task):
    evaluates_only = True  # `validation_epoch` forgets the answers of the evaluation before
    # the last six are those of generated answers; tests/unit/test_generation.py compares them with TEXT_METRICS
    metrics: Mapping[str, str] = {
        "loss": "min", "perplexity": "min", "accuracy": "max",
        "exact_match": "max", "token_f1": "max", "rouge1": "max", "rouge2": "max", "rougeL": "max", "bleu": "max",
    }  # fmt: skip
    counts = "tokens"
    generate: JsonObject | None = None
    generation: Generation | None = None
    kept: Mapping[int, JsonObject] = {}  # by the numbers of the examples

    def __init__(self, generate: JsonObject | None = None):
        """`generate`: the settings by which each evaluation generates answers; none: it does not."""
        self.generate = generate
        self.metrics = {name: mode for name, mode in self.metrics.items() if generate is not None or name not in TEXT_METRICS}

    def prepare_generation(self, module: nn.Module, data: JsonObject) -> None:
        """To be called where the model is built."""
        ends = stop_at_end(module, data)
        self.generation = None if self.generate is None else Generation(self.generate, module, ends, data)

    def predictions(self, modules: Modules, batch: Batch) -> tuple[Tensor, Tensor]:
        """The logits and the targets of a batch."""
        raise NotImplementedError(f"{type(self).__name__} must say what it predicts: override `predictions`")

    def questions(self, batch: Batch) -> tuple[list[list[int]], list[list[int]]]:
        """For each example the tokens of its prompt, and of the answer that is expected."""
        raise NotImplementedError(f"{type(self).__name__} must say what is to be answered: override `questions`")

    def training_step(self, modules: Modules, batch: Batch) -> Tensor:
        return token_losses(*self.predictions(modules, batch)).sum()

    def outputs(self, modules: Modules, batch: Batch) -> TokenOutputs:
        if self.generate is not None and self.generation is None:
            raise SystemExit(f"{type(self).__name__}: is to generate, so its `build` must call `prepare_generation`.")
        answers = self.generation.answers(modules["model"], *self.questions(batch)) if self.generation else None
        return TokenOutputs(*self.predictions(modules, batch), answers)

    def evaluation_step(self, outputs: TokenOutputs, batch: Batch) -> dict[str, Tensor]:
        right = outputs.logits.argmax(-1) == outputs.targets
        loss = token_losses(outputs.logits, outputs.targets).sum()
        sums = {"count": (outputs.targets != NO_TARGET).sum(), "loss": loss, "right": right.sum()}
        if outputs.answers is None:
            return sums
        from snaketrain.tasks.text_metrics import text_sums

        self.keep_samples(outputs.answers, batch)
        return sums | text_sums(outputs.answers.generated, outputs.answers.references)

    def measure(self, sums: dict[str, Tensor]) -> dict[str, float]:
        loss = sums["loss"] / sums["count"]
        metrics = {"loss": float(loss), "perplexity": float(loss.exp()), "accuracy": float(sums["right"] / sums["count"])}
        if "answers" not in sums:
            return metrics
        from snaketrain.tasks.text_metrics import text_metrics

        return metrics | text_metrics(sums)

    def metric_inputs(self, metric: str, outputs: TokenOutputs, batch: Batch) -> tuple[Tensor, ...]:
        """A row for each token that is predicted."""
        learnt = outputs.targets != NO_TARGET
        return outputs.logits[learnt], outputs.targets[learnt]

    def predict(self, outputs: TokenOutputs, batch: Batch) -> Columns:
        """The mean loss of each text, its number of tokens, and what was generated; nothing in layouts whose rows are not single texts."""
        if "labels" not in batch:
            return {}
        tokens = (outputs.targets != NO_TARGET).sum(1)
        losses = token_losses(outputs.logits, outputs.targets).sum(1)
        return {"loss": losses / tokens, "tokens": tokens} | ({"generated": outputs.answers.generated} if outputs.answers else {})

    # --- some answers to read

    def validation_epoch(self, modules: Modules, batches: Iterable[Callable[[], None]]) -> None:
        self.kept = {}
        super().validation_epoch(modules, batches)

    def keep_samples(self, answers: Answers, batch: Batch) -> None:
        """The first examples of those that this process evaluates."""
        rows = zip(answers.prompts, answers.references, answers.generated, strict=True)
        found = {
            int(number): {"prompt": prompt, "reference": reference, "generated": generated}
            for number, (prompt, reference, generated) in zip(batch["ids"], rows, strict=True)
        }
        self.kept = dict(sorted({**self.kept, **found}.items())[:SAMPLES])

    def samples(self) -> list[JsonObject]:
        return list(self.kept.values())

    def describe(self, modules: Modules, folder: Path) -> None:
        describe_model(modules["model"], folder)
