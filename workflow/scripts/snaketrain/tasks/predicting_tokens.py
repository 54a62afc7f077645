"""What tasks that predict tokens have in common: the loss of each token, generated answers, and the metrics of both."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from snaketrain.config.schema.evaluation import TEXT_METRICS, Generate
from snaketrain.data.loading.training_data import Batch
from snaketrain.models.pretrained import describe_model
from snaketrain.models.token_losses import NO_TARGET, token_losses, vocabulary_size
from snaketrain.runtime.strict_json import JsonObject
from snaketrain.tasks.base import Columns, Modules, Task
from snaketrain.tasks.losses import Summed, loss_of_learnt, named_loss
from snaketrain.tasks.metrics import text_metrics, text_sums

if TYPE_CHECKING:
    from transformers import GenerationConfig


# --- Lets a model write its answers, and turns them and their references into texts.


class Answers(NamedTuple):
    """Texts of a batch, one of each for each example."""

    prompts: list[str]
    references: list[str]
    generated: list[str]


class Generation:
    def __init__(self, settings: JsonObject, module: nn.Module, ends: list[int], data: JsonObject):
        """`ends`: the tokens at which an answer ends. `data`: its facts, with the folder of its tokenizer."""
        from tokenizers import Tokenizer

        self.settings = Generate.model_validate(settings)
        self.tokenizer = Tokenizer.from_file(str(Path(data["tokenizer_folder"]) / "tokenizer.json"))
        self.pad, self.ends = data["pad_token_id"], ends
        if not ends:
            raise SystemExit("data.end_token: is missing, and the model names no end token: nothing says where an answer ends. Set it.")
        self.written = bool(getattr(module.config, "is_encoder_decoder", False))  # by a decoder of its own, rather than after the prompt
        self.checked = False

    def answers(self, module: nn.Module, prompts: Sequence[list[int]], references: Sequence[list[int]]) -> Answers:
        """The answers to prompts, all of which the model gets at once."""
        self.check_ends(references)
        generated = self.generate(module, prompts)
        return Answers(*([self.text(row) for row in rows] for rows in (prompts, references, generated)))

    def generate(self, module: nn.Module, prompts: Sequence[list[int]]) -> list[list[int]]:
        width = max(1, *map(len, prompts))
        rows, mask = [], []
        for prompt in prompts:
            room = width - len(prompt)
            before, after = (0, room) if self.written else (room, 0)  # so that each answer continues its prompt
            rows.append([self.pad] * before + prompt + [self.pad] * after)
            mask.append([0] * before + [1] * len(prompt) + [0] * after)
        device = next(module.parameters()).device
        model: Any = module  # of transformers
        written = model.generate(
            input_ids=torch.tensor(rows, device=device), attention_mask=torch.tensor(mask, device=device), do_sample=False, use_cache=True,
            eos_token_id=self.ends, pad_token_id=self.pad, **self.settings.model_dump(exclude_none=True),
        )  # fmt: skip
        start = 1 if self.written else width
        return [self.until_end(row) for row in written[:, start:].tolist()]

    def text(self, tokens: list[int]) -> str:
        """Without special tokens."""
        text: str = self.tokenizer.decode(self.until_end(tokens), skip_special_tokens=True)
        return text.strip()

    def until_end(self, tokens: list[int]) -> list[int]:
        return tokens[: next((place for place, token in enumerate(tokens) if token in self.ends), len(tokens))]

    def check_ends(self, references: Sequence[list[int]]) -> None:
        """Warn of a model that never learns to stop: each of its answers is as long as allowed."""
        if not self.checked and not any(set(self.ends) & set(reference) for reference in references):
            last = self.tokenizer.id_to_token(references[0][-1]) if references[0] else None
            logging.warning(
                "answers in the data end with %r, but the model stops at %s: its answers may never end. Set data.end_token.",
                last, ", ".join(repr(self.tokenizer.id_to_token(end)) for end in self.ends),
            )  # fmt: skip
        self.checked = True


def stop_at_end(module: nn.Module, data: JsonObject) -> list[int]:
    """The tokens at which an answer ends: those of the model, and that of the data, at which the model then stops wherever it is used."""
    config: GenerationConfig | None = getattr(module, "generation_config", None)
    own: int | list[int] | None = config.eos_token_id if config else None
    ends = sorted({data.get("end_token_id"), *(own if isinstance(own, list) else [own])} - {None})
    if config and ends:
        config.eos_token_id = ends if len(ends) > 1 else ends[0]
    return ends


def check_vocabulary(module: nn.Module, vocabulary: int) -> None:
    if (size := vocabulary_size(module)) < vocabulary:
        raise SystemExit(f"data.tokenizer: has {vocabulary} tokens, but the model {size}: name the tokenizer that belongs to model.source.")


def split_answer(tokens: list[int], types: list[int]) -> tuple[list[int], list[int]]:
    """The tokens before the last answer, and that answer: the last ones of type 1."""
    end = next((place for place in range(len(types), 0, -1) if types[place - 1]), len(types))
    start = next((place for place in range(end, 0, -1) if not types[place - 1]), 0)
    return tokens[:start], tokens[start:end]


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
    use = ""  # the name of the model's class
    longest: int | None = None  # positions that it has
    generate: JsonObject | None = None
    generation: Generation | None = None
    kept: Mapping[int, JsonObject] = {}  # by the numbers of the examples
    own_loss: Summed | None = None

    def __init__(self, generate: JsonObject | None = None, loss: JsonObject | None = None):
        """`generate`: the settings by which each evaluation generates answers; none: it does not. `loss`: one in place of the cross entropy, called with logits and tokens."""
        self.generate = generate
        if loss is not None:
            self.own_loss = named_loss(loss)
        self.metrics = {name: mode for name, mode in self.metrics.items() if generate is not None or name not in TEXT_METRICS}

    def check_positions(self, needed: int, advice: str) -> None:
        """`needed`: positions of the model, which `build` leaves as `use` and `longest`."""
        if self.longest is not None and needed > self.longest:
            raise SystemExit(f"model.use: {self.use} has {self.longest} positions, but {needed} are needed: {advice}.")

    def prepare_generation(self, module: nn.Module, data: JsonObject) -> None:
        """To be called where the model is built."""
        ends = stop_at_end(module, data)
        self.generation = None if self.generate is None else Generation(self.generate, module, ends, data)

    def check(self, batch: Batch) -> None:
        """Exit with a message if the model does not support the data's layout or length."""

    def targets(self, batch: Batch) -> Tensor:
        """The tokens to predict, or NO_TARGET."""
        raise NotImplementedError(f"{type(self).__name__} must say which tokens it learns: override `targets`")

    def predictions(self, modules: Modules, batch: Batch) -> tuple[Tensor, Tensor]:
        """The logits and the targets of a batch."""
        raise NotImplementedError(f"{type(self).__name__} must say what it predicts: override `predictions`")

    def questions(self, batch: Batch) -> tuple[list[list[int]], list[list[int]]]:
        """For each example the tokens of its prompt, and of the answer that is expected."""
        raise NotImplementedError(f"{type(self).__name__} must say what is to be answered: override `questions`")

    def count(self, batch: Batch) -> int:
        self.check(batch)
        return int((self.targets(batch) != NO_TARGET).sum())

    def training_step(self, modules: Modules, batch: Batch) -> Tensor:
        logits, targets = self.predictions(modules, batch)
        return loss_of_learnt(self.own_loss, logits, targets) if self.own_loss else token_losses(logits, targets).sum()

    def outputs(self, modules: Modules, batch: Batch) -> TokenOutputs:
        if self.generate is not None and self.generation is None:
            raise SystemExit(f"{type(self).__name__}: is to generate, so its `build` must call `prepare_generation`.")
        self.check(batch)
        answers = self.generation.answers(modules["model"], *self.questions(batch)) if self.generation else None
        return TokenOutputs(*self.predictions(modules, batch), answers)

    def evaluation_step(self, outputs: TokenOutputs, batch: Batch) -> dict[str, Tensor]:
        right = outputs.logits.argmax(-1) == outputs.targets
        loss = token_losses(outputs.logits, outputs.targets).sum()
        sums = {"count": (outputs.targets != NO_TARGET).sum(), "loss": loss, "right": right.sum()}
        if outputs.answers is None:
            return sums
        self.keep_samples(outputs.answers, batch)
        return sums | text_sums(outputs.answers.generated, outputs.answers.references)

    def measure(self, sums: dict[str, Tensor]) -> dict[str, float]:
        loss = sums["loss"] / sums["count"]
        metrics = {"loss": float(loss), "perplexity": float(loss.exp()), "accuracy": float(sums["right"] / sums["count"])}
        if "answers" not in sums:
            return metrics
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
