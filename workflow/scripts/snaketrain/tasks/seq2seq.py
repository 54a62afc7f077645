"""Writes a target from a source with an encoder and a decoder, such as T5 or BART: summaries, translations, answers."""

from collections.abc import Callable
from pathlib import Path

from torch import Tensor, nn

from snaketrain.models.pretrained import make_model
from snaketrain.models.token_losses import NO_TARGET, vocabulary_size
from snaketrain.runtime.strict_json import JsonObject
from snaketrain.tasks.base import Batch, Modules
from snaketrain.tasks.predicting_tokens import TokenOutputs, TokenPrediction


class Seq2seq(TokenPrediction):
    def build(self, model: JsonObject, folder: Path | None, data: JsonObject) -> Modules:
        pad, end = data["pad_token_id"], data.get("end_token_id")
        text = {"vocab_size": data["vocab_size"], "pad_token_id": pad, "decoder_start_token_id": pad}
        text |= {} if end is None else {"eos_token_id": end}
        module = make_model(model, folder, {}, text)
        self.use, self.longest = model["use"], getattr(module.config, "max_position_embeddings", None)
        _check_model(module, self.use, data["vocab_size"])
        self.shifted: Callable[[Tensor], Tensor] = module.prepare_decoder_input_ids_from_labels  # type: ignore[assignment]  # of transformers
        self.prepare_generation(module, data)
        return {"model": module}

    def count(self, batch: Batch) -> int:
        self.check(batch)
        return int((batch["target_ids"] != NO_TARGET).sum())

    def outputs(self, modules: Modules, batch: Batch) -> TokenOutputs:
        self.check(batch)
        return super().outputs(modules, batch)

    def questions(self, batch: Batch) -> tuple[list[list[int]], list[list[int]]]:
        masks = batch["attention_mask"] > 0, batch["target_ids"] != NO_TARGET
        sources, targets = (zip(batch[name], mask, strict=True) for name, mask in zip(("input_ids", "target_ids"), masks, strict=True))
        return [tokens[given].tolist() for tokens, given in sources], [tokens[given].tolist() for tokens, given in targets]

    def predictions(self, modules: Modules, batch: Batch) -> tuple[Tensor, Tensor]:
        targets = batch["target_ids"]
        given = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
        return modules["model"](**given, decoder_input_ids=self.shifted(targets), use_cache=False).logits, targets

    def check(self, batch: Batch) -> None:
        """Exit with a message if the data has no targets, or if they or their sources are longer than the model allows."""
        if "target_ids" not in batch:
            raise SystemExit("data.target: is missing. Name the column of the text that seq2seq is to write.")
        for name, setting in {"input_ids": "data.max_length", "target_ids": "data.max_target_length"}.items():
            if self.longest is not None and batch[name].shape[1] > self.longest:
                raise SystemExit(
                    f"model.use: {self.use} has {self.longest} positions, but {batch[name].shape[1]} are needed: cut texts by {setting}, "
                    "or, without model.source, set model.arguments.max_position_embeddings."
                )


def _check_model(module: nn.Module, use: str, vocabulary: int) -> None:
    if not hasattr(module, "prepare_decoder_input_ids_from_labels"):
        raise SystemExit(
            f"model.use: {use} has no decoder that writes a target. Name a class such as transformers.T5ForConditionalGeneration."
        )
    if (size := vocabulary_size(module)) < vocabulary:
        raise SystemExit(f"data.tokenizer: has {vocabulary} tokens, but the model {size}: name the tokenizer that belongs to model.source.")
