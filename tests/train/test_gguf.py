"""A model in a GGUF file: the weights, the tokenizer and the chat template are all loaded from that file."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import pytest
import torch
from kernel_coder.models.tiny import tiny_model, tiny_tokenizer
from kernel_coder.policy.config import ModelConfig
from kernel_coder.policy.model import load_policy
from kernel_coder.train.__main__ import main
from tiny_run import flags, summary, write_tasks
from transformers import LlamaForCausalLM

LAYERS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """``model.layers.0.mlp.up_proj.weight`` -> ``blk.0.ffn_up.weight``."""
    for ours, theirs in (("model.embed_tokens", "token_embd"), ("model.norm", "output_norm")):
        name = name.replace(ours, theirs)
    for ours, theirs in LAYERS.items():
        name = name.replace(ours, theirs)
    return name.replace("model.layers", "blk")


def interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """GGUF keeps the two halves of a rotary pair beside each other."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


@pytest.fixture(scope="module")
def gguf_folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LlamaForCausalLM]:
    folder = tmp_path_factory.mktemp("gguf")
    tokenizer = tiny_tokenizer()
    model = tiny_model(len(tokenizer))
    config = model.config
    writer = gguf.GGUFWriter(str(folder / "tiny.gguf"), "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    bpe = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    tokens = sorted(bpe["vocab"], key=bpe["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token.startswith("<|") else 1 for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in bpe["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_chat_template(tokenizer.chat_template)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            continue  # tied to the embeddings
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        for projection, count in heads.items():
            if projection in name:
                tensor = interleaved(tensor, count)
        writer.add_tensor(gguf_name(name), tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder, model


def test_weights_and_tokenizer_are_loaded_from_the_file(gguf_folder: tuple[Path, LlamaForCausalLM]) -> None:
    folder, model = gguf_folder
    policy = load_policy(ModelConfig(name_or_path=str(folder), gguf_file="tiny.gguf", device="cpu"))
    text = "class ModelNew(nn.Module):\n    pass"
    ids = policy.tokenizer(text, add_special_tokens=False)["input_ids"]
    assert policy.tokenizer.decode(ids) == text
    assert policy.tokenizer.chat_template == tiny_tokenizer().chat_template
    with torch.no_grad():
        torch.testing.assert_close(policy.model(torch.tensor([ids])).logits, model(torch.tensor([ids])).logits)


def test_a_run_from_a_gguf_file_trains_and_resumes(gguf_folder: tuple[Path, LlamaForCausalLM], tmp_path: Path) -> None:
    folder, _ = gguf_folder
    arguments = flags(
        write_tasks(tmp_path),
        tmp_path / "run",
        model__name_or_path=folder,
        model__gguf_file="tiny.gguf",
        run__max_steps=1,
    )
    assert main(arguments) == 0
    assert main([*arguments, "--run.max_steps", "2", "--resume"]) == 0
    assert summary(tmp_path / "run")["steps"] == 2
