"""A trained classifier of texts or pairs as MLflow serves it: for each, its label and the probability of that label.

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
        return self.answers(model_input)

    def answers(self, texts: list[str] | list[tuple[str, str]]) -> list[dict[str, str | float]]:
        import torch

        found: list[dict[str, str | float]] = []
        with torch.inference_mode():
            for start in range(0, len(texts), TEXTS_AT_ONCE):
                some = texts[start : start + TEXTS_AT_ONCE]
                cut = {"truncation": self.longest is not None, "max_length": self.longest}
                logits = self.model(**self.tokenizer(some, padding=True, return_tensors="pt", **cut)).logits
                for score, label in zip(*logits.softmax(-1).max(-1), strict=True):
                    found.append({"label": self.model.config.id2label[int(label)], "score": float(score)})
        return found


class PairClassifier(TextClassifier):
    def predict(self, model_input: list[dict[str, str]]):  # type: ignore[no-untyped-def, override]
        """The same for each pair, `{"text": ..., "text_pair": ...}`."""
        if any(pair.keys() != {"text", "text_pair"} for pair in model_input):
            raise mlflow.exceptions.MlflowException.invalid_parameter_value('Give each pair as {"text": "...", "text_pair": "..."}.')
        return self.answers([(pair["text"], pair["text_pair"]) for pair in model_input])


pairs = mlflow.models.ModelConfig().get("pairs")  # type: ignore[no-untyped-call]
mlflow.models.set_model(PairClassifier() if pairs else TextClassifier())
