"""Lets a model answer where no answer is known: a task around the one that it was trained on."""

from collections.abc import Callable, Iterable

from torch import nn

from snaketrain.config.schema.evaluation import Generate
from snaketrain.data.loading.training_data import Batch
from snaketrain.runtime.strict_json import JsonObject
from snaketrain.tasks.base import Columns, Modules, Task
from snaketrain.tasks.predicting_tokens import Generation, TokenPrediction, stop_at_end


class Answering(Task):
    """Each example is a prompt, and its prediction the text that the model generates for it."""

    def __init__(self, task: TokenPrediction, module: nn.Module, settings: Generate, data: JsonObject):
        self.task, self.longest = task, getattr(module.config, "max_position_embeddings", None)
        self.generation = Generation(settings.model_dump(), module, stop_at_end(module, data), data)

    def outputs(self, modules: Modules, batch: Batch) -> list[str]:
        prompts = [tokens[given].tolist() for tokens, given in zip(batch["input_ids"], batch["attention_mask"] > 0, strict=True)]
        self.check_length(max(map(len, prompts)))
        return [self.generation.text(answer) for answer in self.generation.generate(modules["model"], prompts)]

    def check_length(self, longest: int) -> None:
        answer = 0 if self.generation.written else self.generation.settings.max_new_tokens
        if self.longest is not None and longest + answer > self.longest:
            raise SystemExit(
                f"the model has {self.longest} positions, but the longest text{' with an answer' if answer else ''} needs {longest + answer}: "
                f"shorten it{', or make max_new_tokens smaller' if answer else ''}."
            )

    def predict(self, outputs: list[str], batch: Batch) -> Columns:
        return {"generated": outputs}

    def validation_epoch(self, modules: Modules, batches: Iterable[Callable[[], None]]) -> None:
        self.task.validation_epoch(modules, batches)  # which may put averaged weights in place
