"""Predicts the class of an image or a recording, by any model of transformers with such a head."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from snaketrain.data.loading.training_data import Batch
from snaketrain.extras.media_classification.files import make_processor
from snaketrain.labels import metrics_by_label_kind
from snaketrain.runtime.strict_json import JsonObject
from snaketrain.tasks.base import Columns, Modules
from snaketrain.tasks.text_classification import TextClassification

NOT_INPUTS = ("labels", "ids")


class MediaClassification(TextClassification):
    metrics: Mapping[str, dict[str, str]] = metrics_by_label_kind()
    of_text = ()

    def build(self, model: JsonObject, folder: Path | None, data: JsonObject) -> Modules:
        if "processor" not in data:
            raise SystemExit(
                "data.train.use: media_classification needs a dataset that names its processor, such as "
                "snaketrain.extras.media_classification.images.Images. Name one, or another train.task."
            )
        self.processor = data["processor"]
        return super().build(model, folder, data)

    def predict(self, outputs: Tensor, batch: Batch) -> Columns:  # type: ignore[override]
        return super().predict(outputs, batch) | {"label": batch["labels"]}

    def describe(self, modules: Modules, folder: Path) -> None:
        """With the processor, so that a pipeline of transformers reads files as the training did."""
        super().describe(modules, folder)
        make_processor("AutoProcessor", self.processor).save_pretrained(folder)

    def logits(self, modules: Modules, batch: Batch) -> Tensor:
        return modules["model"](**{name: value for name, value in batch.items() if name not in NOT_INPUTS}).logits
