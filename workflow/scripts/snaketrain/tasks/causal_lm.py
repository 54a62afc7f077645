"""Predicts each token of a text from those before it: pretraining on running text, or fine-tuning on prompts with their answers."""

from pathlib import Path

import torch
from torch import Tensor, nn

from snaketrain.data.loading.training_data import Batch
from snaketrain.models.pretrained import make_model
from snaketrain.models.token_losses import NO_TARGET, refuse_later_tokens, sees_other_texts, vocabulary_size
from snaketrain.models.weights import has_memory, unread_weights
from snaketrain.runtime.strict_json import JsonObject
from snaketrain.tasks.base import Modules
from snaketrain.tasks.predicting_tokens import TokenPrediction, check_vocabulary, split_answer


class CausalLm(TokenPrediction):
    unprobed = False  # whether what the model attends to is still to be found out

    def __init__(self, learn_prompts: bool = False, generate: JsonObject | None = None, loss: JsonObject | None = None):
        """`learn_prompts`: of prompts with answers, and of chats, the prompts are learnt as well, and not the answers alone."""
        super().__init__(generate, loss)
        self.learn_prompts = learn_prompts

    def build(self, model: JsonObject, folder: Path | None, data: JsonObject) -> Modules:
        if type(self).training_step is TokenPrediction.training_step:
            _check_balance(model["arguments"])
        # not `data`'s padding token, which may also be an ordinary token: its embedding must be learnt
        text = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": data.get("end_token_id")}
        text |= {"vocab_size": data["vocab_size"]} if "vocab_size" in data else {}  # a dataset class need not give it
        module = make_model(model, folder, {}, text)
        self.use, self.longest = model["use"], getattr(module.config, "max_position_embeddings", None)
        if not vocabulary_size(module):
            raise SystemExit(f"model.use: {self.use} does not predict tokens. Name a class such as transformers.LlamaForCausalLM.")
        check_vocabulary(module, data.get("vocab_size", 0))
        # FlashAttention needs a GPU, so it cannot be probed here; it separates packed texts only in a batch of one row
        self.one_row = "flash" in (getattr(module.config, "_attn_implementation", None) or "")
        self.unprobed, self.keeps_texts_apart = unread_weights(module) is not None and not self.one_row, True
        if has_memory(module) and not self.one_row:  # on the meta device another rank probes it, or all do when its weights are read
            self.probe(module)
        self.prepare_generation(module, data)
        return {"model": module}

    def probe(self, module: nn.Module) -> None:
        """Find out by its predictions what the model attends to."""
        refuse_later_tokens(module, self.use)
        self.keeps_texts_apart = not sees_other_texts(module)

    def questions(self, batch: Batch) -> tuple[list[list[int]], list[list[int]]]:
        """Each example's tokens before its last answer, and that answer."""
        if "token_type_ids" not in batch or "position_ids" in batch:
            raise SystemExit(
                "train.task.arguments.generate: the data marks no answers. Name two columns in data.text, prompt and answer, or data.messages."
            )
        rows = zip(batch["input_ids"], batch["token_type_ids"], batch["attention_mask"] > 0, strict=True)
        split = [split_answer(tokens[given].tolist(), types[given].tolist()) for tokens, types, given in rows]
        most = max(len(prompt) for prompt, _ in split) + self.generation.settings.max_new_tokens if self.generation else 0
        self.check_positions(most, "make max_new_tokens or data.max_length smaller, since the answer follows the prompt")
        return [prompt for prompt, _ in split], [answer for _, answer in split]

    def predictions(self, modules: Modules, batch: Batch) -> tuple[Tensor, Tensor]:
        """The logits at each position except the last, and the next tokens."""
        if self.unprobed:
            self.unprobed = False
            self.probe(modules["model"])
            self.check(batch)
        # no mask: padding comes last, and a causal model does not attend to later positions
        inputs = {name: self.before(batch[name]) for name in ("input_ids", "position_ids") if name in batch}
        targets = self.before(self.targets(batch))
        if self.one_row and "position_ids" in batch:
            inputs, targets = {name: tensor.reshape(1, -1) for name, tensor in inputs.items()}, targets.reshape(1, -1)
        return modules["model"](**inputs, use_cache=False).logits, targets  # with a cache, position_ids would not separate texts

    def targets(self, batch: Batch) -> Tensor:
        """The next token at each position, or NO_TARGET: for padding, another text, a prompt, and at the end of the row."""
        wanted = (
            batch["position_ids"] > 0 if "position_ids" in batch else batch.get("attention_mask", torch.ones_like(batch["input_ids"])) > 0
        )
        if "token_type_ids" in batch and not self.learn_prompts:
            wanted = wanted & (batch["token_type_ids"] > 0)
        tokens = batch["input_ids"].masked_fill(~wanted, NO_TARGET)
        return nn.functional.pad(tokens[:, 1:], (0, 1), value=NO_TARGET)

    @staticmethod
    def before(tensor: Tensor) -> Tensor:
        """Without the last column, which has no next token; but at least one column."""
        return tensor[:, : max(1, tensor.shape[1] - 1)]

    def check(self, batch: Batch) -> None:
        if "position_ids" in batch and not self.keeps_texts_apart:
            raise SystemExit(
                f"train.packing: {self.use} lets texts of one row attend to each other. Leave it out, or use train.block_length."
            )
        positions = int(batch["position_ids"].max()) + 1 if "position_ids" in batch else batch["input_ids"].shape[1] - 1
        advice = "cut texts by data.max_length, make train.block_length smaller"
        self.check_positions(positions, f"{advice}, or, without model.source, set model.arguments.max_position_embeddings")


def _check_balance(arguments: JsonObject) -> None:
    """Exit with a message if the loss that spreads the tokens over the experts of a mixture is asked for: the loss here has none."""
    for name in ("output_router_logits", "router_aux_loss_coef"):
        if arguments.get(name):
            raise SystemExit(
                f"model.arguments.{name}: has no effect, since causal_lm adds no loss that balances experts. Remove it, or add that loss in the "
                "`training_step` of a task of your own, derived from snaketrain.tasks.causal_lm.CausalLm."
            )
