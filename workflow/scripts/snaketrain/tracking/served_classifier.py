"""A trained text classifier as MLflow serves it: texts in; for each, its label and the probability of that label.

MLflow keeps this file beside the weights and runs it where the model is loaded, so it must not import anything of this project.
"""

import mlflow
from mlflow.pyfunc.model import PythonModel, PythonModelContext

TEXTS_AT_ONCE = 32


class TextClassifier(PythonModel):
    def load_context(self, context: PythonModelContext) -> None:
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        folder = context.artifacts["model"]
        self.longest = context.model_config["max_length"]
        self.tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self.model = AutoModelForSequenceClassification.from_pretrained(folder, local_files_only=True).eval()

    def predict(self, model_input: list[str]):  # type: ignore[no-untyped-def, override]  # MLflow reads both from it
        """A dictionary for each text; MLflow learns its fields from an example."""
        import torch

        answers = []
        with torch.inference_mode():
            for start in range(0, len(model_input), TEXTS_AT_ONCE):
                texts = model_input[start : start + TEXTS_AT_ONCE]
                cut = {"truncation": self.longest is not None, "max_length": self.longest}
                logits = self.model(**self.tokenizer(texts, padding=True, return_tensors="pt", **cut)).logits
                for score, label in zip(*logits.softmax(-1).max(-1), strict=True):
                    answers.append({"label": self.model.config.id2label[int(label)], "score": float(score)})
        return answers


mlflow.models.set_model(TextClassifier())
