"""Each rank reads its slices of pretrained weights: under each strategy they equal those of a whole model, also if files lack a part."""

import json
from pathlib import Path

import torch
from distributed import forking

RUNNER = Path(__file__).with_name("slices_runner.py")
LLAMA = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 64}
BERT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


def test_each_strategy_holds_the_weights_of_a_whole_model(tmp_path):
    from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

    torch.manual_seed(3)
    BertModel(BertConfig(**BERT, vocab_size=24)).save_pretrained(tmp_path / "encoder", max_shard_size="20KB")
    LlamaForCausalLM(LlamaConfig(**LLAMA, vocab_size=24, tie_word_embeddings=True)).save_pretrained(tmp_path / "tied")
    LlamaForCausalLM(LlamaConfig(**LLAMA | {"num_hidden_layers": 4}, vocab_size=24)).save_pretrained(tmp_path / "untied")
    MixtralForCausalLM(MixtralConfig(**LLAMA, vocab_size=24, num_local_experts=4)).save_pretrained(tmp_path / "mixture")
    forking.preload()
    log, results = tmp_path / "log", tmp_path / "results.json"
    assert forking.run([str(tmp_path), str(results)], 4, log, RUNNER) == [0] * 4, log.read_text()[-8000:]
    found = json.loads(results.read_text())
    assert len(found) == 16 and all(all(each.values()) for each in found.values()), found
