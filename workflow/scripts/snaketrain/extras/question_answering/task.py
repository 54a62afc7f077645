"""Predicts where in a context the answer to a question begins and ends, from windows of the context."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from snaketrain.data.loading.examples import sequences
from snaketrain.data.loading.training_data import Batch
from snaketrain.extras.question_answering import NO_PLACE
from snaketrain.extras.question_answering.label_kind import AnswersHead
from snaketrain.labels import metrics_by_label_kind
from snaketrain.runtime.strict_json import JsonObject
from snaketrain.tasks.base import Columns, Modules
from snaketrain.tasks.text_classification import TextClassification

NO_ANSWER = 0  # the place of a window's first token, such as [CLS], which stands for both ends of no answer


class Windows(NamedTuple):  # of a batch, one in a row, padded
    question: Tensor  # of each window, its place in the batch
    inputs: Batch
    begins: Tensor  # of each token, its characters in the context; below 0 if it is not of the context
    ends: Tensor


class SpanOutputs(NamedTuple):
    question: Tensor  # of each window, its place in the batch
    losses: Tensor  # of each window
    predicted: list[str]  # of each question


class QuestionAnswering(TextClassification):
    metrics: Mapping[str, dict[str, str]] = metrics_by_label_kind()
    counts = "windows"
    head: AnswersHead

    def __init__(self, max_answer_length: int = 30, no_answer_threshold: float | None = None):
        """`max_answer_length`: in tokens. `no_answer_threshold`: by how much the logits of no answer must exceed those of the best one; null: 0
        if some questions of the training data have no answer, and otherwise there always is one."""
        super().__init__()
        if max_answer_length < 1:
            raise SystemExit(f"train.task.arguments.max_answer_length: is {max_answer_length}. Give at least 1.")
        self.longest, self.threshold = max_answer_length, no_answer_threshold

    def build(self, model: JsonObject, folder: Path | None, data: JsonObject) -> Modules:
        if self.threshold is None and any(data["splits"]["train"].get("label_counts", [])[1:]):
            self.threshold = 0.0
        modules = super().build(model, folder, data)
        self.use, self.padding = model["use"], data["pad_token_id"]
        return modules

    def count(self, batch: Batch) -> int:
        return int((batch["windows"] > 0).sum())

    def training_step(self, modules: Modules, batch: Batch) -> Tensor:
        return self.spans(modules, batch)[2].sum()

    def outputs(self, modules: Modules, batch: Batch) -> SpanOutputs:  # type: ignore[override]
        windows, logits, losses = self.spans(modules, batch)
        return SpanOutputs(windows.question, losses, self.answers(logits, windows, batch["context"]))

    def evaluation_step(self, outputs: SpanOutputs, batch: Batch) -> dict[str, Tensor]:  # type: ignore[override]
        counts = {"count": torch.tensor(len(outputs.predicted)), "windows": torch.tensor(len(outputs.losses))}
        return counts | {"loss": outputs.losses.sum()} | self.head.sums(outputs.predicted, batch["labels"])

    def measure(self, sums: dict[str, Tensor]) -> dict[str, float]:
        return {"loss": float(sums["loss"] / sums["windows"])} | self.head.measure(sums)

    def predict(self, outputs: SpanOutputs, batch: Batch) -> Columns:  # type: ignore[override]
        """The answers, and the mean loss of each question's windows."""
        counts, total = (outputs.question.bincount(weights, minlength=len(outputs.predicted)) for weights in (None, outputs.losses))
        return {"predicted": outputs.predicted, "loss": total / counts, "windows": counts}

    # --- windows

    def windows(self, batch: Batch) -> Windows:
        fills = {"input_ids": self.padding, "token_type_ids": 0, "begins": NO_PLACE, "ends": NO_PLACE}
        question, _, rows = sequences(batch, "windows", fills)
        return Windows(question, {name: rows[name] for name in self.inputs}, rows["begins"], rows["ends"])

    def spans(self, modules: Modules, batch: Batch) -> tuple[Windows, Tensor, Tensor]:
        """The logits of each place of each window, for both ends of the answer, and the loss of each window."""
        windows = self.windows(batch)
        found = modules["model"](**windows.inputs)
        if not hasattr(found, "start_logits"):
            raise SystemExit(f"model.use: {self.use} answers no questions. Name a class such as transformers.BertForQuestionAnswering.")
        padding = (
            windows.inputs["attention_mask"][:, :, None] == 0
        )  # has no share in the loss, which would depend on the longest window beside
        logits = torch.stack([found.start_logits, found.end_logits], 2).float().masked_fill(padding, -torch.inf)
        return windows, logits, self.head.losses(logits, targets(windows, batch["labels"]))

    def answers(self, logits: Tensor, windows: Windows, contexts: Tensor) -> list[str]:
        """Of each question the best part of its context, in any of its windows."""
        scores, begins, lasts = (found.tolist() for found in best_spans(logits, windows.begins >= 0, self.longest))
        nothing, questions, texts = logits[:, NO_ANSWER].sum(1).tolist(), windows.question.tolist(), []
        for number, context in enumerate(contexts):
            among = [window for window, question in enumerate(questions) if question == number]
            window = max(among, key=scores.__getitem__)  # of equal ones the first
            limit = -math.inf if self.threshold is None else min(nothing[each] for each in among) - self.threshold
            found = scores[window] > -math.inf and scores[window] >= limit
            part = slice(int(windows.begins[window, begins[window]]), int(windows.ends[window, lasts[window]])) if found else slice(0)
            texts.append("".join(map(chr, context[part].tolist())).strip())
        return texts


def targets(windows: Windows, labels: Tensor) -> Tensor:
    """The places of the first and the last token of the first answer in each window that has it whole, otherwise NO_ANSWER."""
    first = labels[windows.question, 0]
    last = first + (labels[windows.question, 1] if labels.shape[1] > 1 else 0)  # behind its last character
    of_context, places = windows.begins >= 0, torch.arange(windows.begins.shape[1], device=labels.device)
    overlaps = of_context & (windows.ends > first[:, None]) & (windows.begins < last[:, None])
    whole = (of_context & (windows.begins <= first[:, None])).any(1) & (of_context & (windows.ends >= last[:, None])).any(1)
    found = torch.stack([places.where(overlaps, len(places)).amin(1), places.where(overlaps, -1).amax(1)], 1)
    return found.where(((first >= 0) & whole & overlaps.any(1))[:, None], NO_ANSWER)


def best_spans(logits: Tensor, of_context: Tensor, longest: int) -> tuple[Tensor, Tensor, Tensor]:
    """In each window the score of the best part of at most so many tokens, and the places of its first and its last one."""
    begin, end = (logits[..., column].masked_fill(~of_context, -torch.inf) for column in (0, 1))
    width = begin.shape[1]
    by_length = [(begin[:, : width - more] + end[:, more:]).max(1) for more in range(min(longest, width))]
    scores, more = torch.stack([found.values for found in by_length]).max(0)
    first = torch.stack([found.indices for found in by_length]).gather(0, more[None])[0]
    return scores, first, first + more
