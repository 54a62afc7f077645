"""Generated answers against transformers on each example by itself, and their metrics against sacrebleu, rouge-score and SQuAD's."""

import logging
import random

import pytest
import torch
from grammar import WORDS, write_word_tokenizer
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu import corpus_bleu
from transformers import GenerationConfig

from snaketrain.config.schema.evaluation import TEXT_METRICS
from snaketrain.data.loading.examples import NO_TARGET, padded
from snaketrain.evaluation.predicting import predict
from snaketrain.strategies.ddp import Single
from snaketrain.tasks.causal_lm import CausalLm
from snaketrain.tasks.metrics import text_metrics, text_sums
from snaketrain.tasks.predicting_tokens import TokenPrediction, split_answer
from snaketrain.tasks.seq2seq import Seq2seq
from snaketrain.training.state import TrainState

END = PAD = 0
BART = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in {"layers": 1, "attention_heads": 2, "ffn_dim": 48}.items()}
BART |= {"d_model": 32, "max_position_embeddings": 64, "init_std": 0.5, "bos_token_id": None, "forced_eos_token_id": None}
SIZES = {
    "T5ForConditionalGeneration": {"d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 1, "num_heads": 2, "initializer_factor": 4.0},
    "BartForConditionalGeneration": BART,
    "LlamaForCausalLM": {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 48,
        "initializer_range": 0.5,
    },
}
LENGTHS = [(4, 3), (9, 1), (2, 6), (5, 5)]  # of prompts and answers
GENERATED = ["the cat sat on the mat today", "", "An answer.", "yes, it is", "a b c d e f g"]
REFERENCES = ["the cat was on a mat today", "nothing", "answer", "yes , it is", "a b c d e f g"]


class Asked:
    """Prompts with answers, as the task of the model gets them: in one sequence or in two."""

    def __init__(self, name: str):
        torch.manual_seed(2)
        self.two = name != "LlamaForCausalLM"
        self.prompts, self.answers = (
            [torch.randint(1, 1 + len(WORDS), (n,)).tolist() + [END] * ending for n in lengths]
            for lengths, ending in zip(zip(*LENGTHS, strict=True), (0, 1), strict=True)
        )
        self.lengths = torch.tensor([sum(pair) for pair in LENGTHS]).numpy()

    def __len__(self) -> int:
        return len(self.prompts)

    def batch(self, ids, epoch=None):
        prompts, answers = ([torch.tensor(rows[i]).numpy() for i in ids] for rows in (self.prompts, self.answers))
        joined = prompts if self.two else [torch.tensor(self.prompts[i] + self.answers[i]).numpy() for i in ids]
        batch = {"input_ids": padded(joined, PAD), "attention_mask": padded([row * 0 + 1 for row in joined], 0)}
        types = [torch.tensor([0] * len(self.prompts[i]) + [1] * len(self.answers[i])).numpy() for i in ids]
        more = {"target_ids": padded(answers, NO_TARGET)} if self.two else {"token_type_ids": padded(types, 0)}
        return batch | more | {"labels": torch.zeros(len(ids)), "ids": torch.tensor(ids)}


def make(folder, name: str, end: int | None = END, **generate) -> tuple[TokenPrediction, TrainState]:
    write_word_tokenizer(folder)
    torch.manual_seed(0)
    settings = None if generate.get("max_new_tokens", 7) is None else {"max_new_tokens": 7} | generate
    task = (Seq2seq if "Conditional" in name else CausalLm)(generate=settings)
    facts = {"vocab_size": 2 + len(WORDS), "pad_token_id": PAD, "end_token_id": end, "tokenizer_folder": str(folder)}
    modules = task.build({"use": f"transformers.{name}", "arguments": SIZES[name]}, None, facts)
    return task, TrainState(task, Single(device="cpu", precision="fp32"), modules)


def words(tokens: list[int]) -> str:
    names = ["", *WORDS, "[UNK]"]
    return " ".join(names[token] for token in (tokens[: tokens.index(END)] if END in tokens else tokens))


@pytest.mark.parametrize("generate", [{}, {"num_beams": 3, "length_penalty": 2.0}], ids=["greedy", "beams"])
@pytest.mark.parametrize("name", SIZES)
def test_batched_answers_equal_those_of_single_examples(tmp_path, name, generate):
    task, state = make(tmp_path, name, **generate)
    examples = Asked(name)
    metrics, rows = predict(state, examples, 3, None, "test", measured=True)
    model, expected = state.modules["model"].eval(), []
    for prompt in examples.prompts:
        given = torch.tensor([prompt])
        mask = torch.ones_like(given)
        found = model.generate(
            given, attention_mask=mask, max_new_tokens=7, do_sample=False, eos_token_id=END, pad_token_id=PAD, **generate
        )
        expected.append(words(found[0, 1 if examples.two else len(prompt) :].tolist()))
    assert rows["generated"].tolist() == expected and len(set(expected)) > 1
    references = [words(answer) for answer in examples.answers]
    assert metrics["bleu"] == pytest.approx(corpus_bleu(expected, [references]).score)
    assert [sample["generated"] for sample in task.samples()] == expected
    assert [sample["reference"] for sample in task.samples()] == references
    assert list(metrics) == list(task.metrics)


def test_without_settings_nothing_is_generated(tmp_path):
    task, state = make(tmp_path, "T5ForConditionalGeneration", max_new_tokens=None)
    metrics, rows = predict(state, Asked("T5ForConditionalGeneration"), 3, None, "test", measured=True)
    assert list(metrics) == list(task.metrics) == ["loss", "perplexity", "accuracy"] and set(rows) == {"ids", "loss", "tokens"}


class Forgetful(Seq2seq):
    """A task of a user's own that builds its model in another way."""

    def prepare_generation(self, *_: object) -> None: ...


def test_a_task_that_cannot_generate_says_so(tmp_path):
    _, state = make(tmp_path, "T5ForConditionalGeneration")
    task = Forgetful(generate={})
    with pytest.raises(SystemExit, match="Forgetful: is to generate, so its `build` must call `prepare_generation`"):
        super(Seq2seq, task).outputs(state.modules, {})


def test_a_model_without_a_fitting_end_token_is_refused_or_reported(tmp_path, caplog):
    with pytest.raises(SystemExit, match="nothing says where an answer ends"):
        make(tmp_path, "LlamaForCausalLM", end=None)
    _, state = make(tmp_path, "T5ForConditionalGeneration", end=None)  # whose own is the first word
    examples = Asked("T5ForConditionalGeneration")
    examples.answers = [[5, 6, 7, END]] * len(examples)
    with caplog.at_level(logging.WARNING):
        predict(state, examples, 2, None, "test", measured=True)
    assert [record.getMessage() for record in caplog.records] == [
        f"answers in the data end with '<|endoftext|>', but the model stops at {WORDS[0]!r}: its answers may never end. Set data.end_token."
    ]


def test_the_exported_model_stops_where_the_answers_of_the_data_end(tmp_path):
    task, state = make(tmp_path, "T5ForConditionalGeneration", end=None)
    assert state.modules["model"].generation_config.eos_token_id == 1
    published = tmp_path / "published"
    state.modules["model"].save_pretrained(published)
    facts = {"vocab_size": 2 + len(WORDS), "pad_token_id": PAD, "end_token_id": 7}
    modules = task.build(
        {"use": "transformers.AutoModelForSeq2SeqLM", "arguments": {}}, published, facts | {"tokenizer_folder": str(tmp_path)}
    )
    task.describe(modules, tmp_path)
    assert GenerationConfig.from_pretrained(tmp_path).eos_token_id == [1, 7]


@pytest.mark.parametrize(
    ("types", "answer"), [([0, 0, 1, 1], (2, 4)), ([0, 1, 0, 1, 0], (3, 4)), ([1, 1], (0, 2)), ([0, 0], (2, 2)), ([0, 1, 1, 0, 0], (1, 3))]
)
def test_the_last_answer_is_split_off(types, answer):
    tokens = list(range(10, 10 + len(types)))
    assert split_answer(tokens, types) == (tokens[: answer[0]], tokens[answer[0] : answer[1]])


def test_metrics_are_those_of_the_libraries_however_the_texts_are_batched():
    parts = [text_sums(GENERATED[a:b], REFERENCES[a:b]) for a, b in ((0, 2), (2, 3), (3, 5))]
    found = text_metrics({name: sum(part[name] for part in parts) for name in parts[0]})
    assert found["bleu"] == pytest.approx(corpus_bleu(GENERATED, [REFERENCES]).score)
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"])
    scores = [scorer.score(reference, text) for text, reference in zip(GENERATED, REFERENCES, strict=True)]
    for name in ("rouge1", "rouge2", "rougeL"):
        assert found[name] == pytest.approx(sum(score[name].fmeasure for score in scores) / len(scores))
    assert found["exact_match"] == pytest.approx(1 / 5)
    assert found["token_f1"] == pytest.approx((0.8 + 0 + 1 + 1 + 1) / 5)
    assert list(found) == list(TEXT_METRICS) and TEXT_METRICS.items() <= TokenPrediction.metrics.items()


def test_rouge_is_that_of_rouge_score():
    """On random texts of few words, so that they have much in common, with other letters, signs and none."""
    draw, scorer = random.Random(0), RougeScorer(["rouge1", "rouge2", "rougeL"])
    vocabulary = ["a", "b", "C", "d7", "e-f", "caf\u00e9", "\u0130x", ".", "_", "\n"]
    for _ in range(500):
        text, reference = (" ".join(draw.choices(vocabulary, k=draw.randint(0, 12))) for _ in range(2))
        expected = {name: score.fmeasure for name, score in scorer.score(reference, text).items()}
        found = text_sums([text], [reference])
        assert {name: float(found[name]) for name in expected} == pytest.approx(expected), (text, reference)


@pytest.mark.parametrize(
    ("text", "reference", "f1"),
    [("An answer.", "answer", 1), ("yes, it is", "yes it was", 2 / 3), ("the", "a", 1), ("", "x", 0), ("b b", "b", 2 / 3)],
)
def test_token_f1_equals_that_of_squad(text, reference, f1):
    assert float(text_sums([text], [reference])["token_f1"]) == pytest.approx(f1)
