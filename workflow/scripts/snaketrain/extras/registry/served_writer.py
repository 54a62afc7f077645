"""A trained model that writes text, as MLflow serves it: for each prompt or chat, the answer.

MLflow keeps this file beside the weights and runs it where the model is loaded, so it must not import anything of this project. A prompt becomes the
tokens that the extra `prediction` makes of it, and answers are generated as in evaluations: greedily or by beams, nothing is sampled.
"""

import json
import re
from typing import Any, cast

import mlflow
from mlflow.pyfunc.model import PythonModel, PythonModelContext

ASSISTANT, ANSWER = "assistant", "a"  # any text: what comes before it is the prompt
invalid = mlflow.exceptions.MlflowException.invalid_parameter_value


class TextWriter(PythonModel):
    def load_context(self, context: PythonModelContext) -> None:
        import tokenizers
        import torch
        import transformers

        folder, self.given = context.artifacts["model"], context.model_config
        self.library = tokenizers.Tokenizer.from_file(f"{folder}/tokenizer.json")  # transformers may read the same file otherwise
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)  # which knows the template of chats
        (architecture,) = transformers.AutoConfig.from_pretrained(folder, local_files_only=True).architectures
        model = getattr(transformers, architecture).from_pretrained(folder, local_files_only=True).eval()
        self.model = model.to("cuda" if torch.cuda.is_available() else "cpu")
        own = model.generation_config.eos_token_id
        self.ends = sorted({self.given["end"], *(own if isinstance(own, list) else [own])} - {None})

    def predict(self, model_input: list[str], params: dict[str, Any] | None = None):  # type: ignore[no-untyped-def, override]
        """The answer to each prompt, source or chat, which is given as JSON. MLflow reads from this line what it may be given."""
        prompts = list(map(self.of_chat if self.given["chats"] else self.of_text, model_input))
        settings = {name: value for name, value in (params or {}).items() if value is not None}
        return [self.answer(prompt, settings) for prompt in prompts]

    def of_text(self, text: str) -> list[int]:
        """The tokens before an answer; an encoder gets all. The end of the text is cut off where there are more than in the training."""
        if not text.strip():
            raise invalid("A prompt is empty: leave it out.")
        encoding = self.library.encode(text, ANSWER) if self.given["answers"] else self.library.encode(text)
        sequences, longest = encoding.sequence_ids, self.given["max_length"]
        after = 1 + max((place for place, sequence in enumerate(sequences) if sequence == 0), default=-1)
        end = sequences.index(1) if self.given["answers"] else len(sequences) if self.model.config.is_encoder_decoder else after
        more = 0 if longest is None else max(0, end - longest)
        return [*encoding.ids[: after - more], *encoding.ids[after:end]]

    def of_chat(self, text: str) -> list[int]:
        """The tokens up to what the template marks as an answer, or of what it writes as a prompt."""
        from transformers.utils.chat_template_utils import render_jinja_template

        try:
            messages = [{key: value for key, value in message.items() if value is not None} for message in json.loads(text)]
            if messages[-1]["role"] == ASSISTANT:
                raise ValueError
        except (ValueError, LookupError, AttributeError, TypeError):
            raise invalid(
                'Give each chat as JSON, \'[{"role": "user", "content": "..."}]\', up to where the assistant is to speak.'
            ) from None
        template, render = self.tokenizer.chat_template, cast(Any, render_jinja_template)  # which declares to return a text
        if re.search(r"\{%-?\s*generation\s*-?%\}", template):
            given = {"chat_template": template, "return_assistant_tokens_mask": True, **self.tokenizer.special_tokens_map}
            (whole,), (marked,) = render([[*messages, {"role": ASSISTANT, "content": ANSWER}]], **given)
            prompt = whole[: marked[-1][0]]
        else:
            prompt = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return list(self.tokenizer(prompt, add_special_tokens=False)["input_ids"])

    def answer(self, prompt: list[int], settings: dict[str, Any]) -> str:
        import torch

        before = 1 if self.model.config.is_encoder_decoder else len(prompt)  # what is written begins with these tokens
        needed = len(prompt) if self.model.config.is_encoder_decoder else len(prompt) + settings["max_new_tokens"]
        positions = getattr(self.model.config, "max_position_embeddings", None) or needed
        if needed > positions:
            raise invalid(
                f"The model has {positions} positions, but {needed} are needed: shorten the text, or make max_new_tokens smaller."
            )
        ids = torch.tensor([prompt], device=self.model.device)
        given = {"attention_mask": torch.ones_like(ids), "eos_token_id": self.ends or None, "pad_token_id": self.given["pad"]}
        tokens = self.model.generate(ids, do_sample=False, **given, **settings)[0, before:].tolist()
        end = next((place for place, token in enumerate(tokens) if token in self.ends), len(tokens))
        return str(self.library.decode(tokens[:end], skip_special_tokens=True).strip())


mlflow.models.set_model(TextWriter())
