"""Writes a target from a source with an encoder and a decoder, such as T5 or BART: summaries, translations, answers."""

from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from snaketrain.data.loading.training_data import Batch
from snaketrain.models.pretrained import make_model
from snaketrain.models.token_losses import NO_TARGET
from snaketrain.runtime.strict_json import JsonObject
from snaketrain.tasks.base import Modules
from snaketrain.tasks.predicting_tokens import TokenPrediction, check_vocabulary


class Seq2seq(TokenPrediction):
    def build(self, model: JsonObject, folder: Path | None, data: JsonObject) -> Modules:
        pad, end = data["pad_token_id"], data.get("end_token_id")
        text = {"vocab_size": data["vocab_size"], "pad_token_id": pad, "decoder_start_token_id": pad}
        text |= {} if end is None else {"eos_token_id": end}
        module = make_model(model, folder, {}, text)
        self.use, self.longest = model["use"], getattr(module.config, "max_position_embeddings", None)
        if not hasattr(module, "prepare_decoder_input_ids_from_labels"):
            raise SystemExit(
                f"model.use: {self.use} has no decoder that writes a target. Name a class such as transformers.T5ForConditionalGeneration."
            )
        check_vocabulary(module, data["vocab_size"])
        self.shifted: Callable[[Tensor], Tensor] = module.prepare_decoder_input_ids_from_labels  # type: ignore[assignment]  # of transformers
        self.prepare_generation(module, data)
        return {"model": module}

    def targets(self, batch: Batch) -> Tensor:
        return batch["target_ids"]

    def questions(self, batch: Batch) -> tuple[list[list[int]], list[list[int]]]:
        masks = batch["attention_mask"] > 0, batch["target_ids"] != NO_TARGET
        sources, targets = (zip(batch[name], mask, strict=True) for name, mask in zip(("input_ids", "target_ids"), masks, strict=True))
        return [tokens[given].tolist() for tokens, given in sources], [tokens[given].tolist() for tokens, given in targets]

    def predictions(self, modules: Modules, batch: Batch) -> tuple[Tensor, Tensor]:
        targets = batch["target_ids"]
        given = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"], "decoder_input_ids": self.shifted(targets)}
        return modules["model"](**given, use_cache=False).logits, targets

    def check(self, batch: Batch) -> None:
        if "target_ids" not in batch:
            raise SystemExit("data.target: is missing. Name the column of the text that seq2seq is to write.")
        for name, setting in {"input_ids": "data.max_length", "target_ids": "data.max_target_length"}.items():
            advice = f"cut texts by {setting}, or, without model.source, set model.arguments.max_position_embeddings"
            self.check_positions(batch[name].shape[1], advice)
