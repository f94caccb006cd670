"""A two-layer model with random weights and a byte-level tokenizer, for tests and first runs.

Both are made in a second, without files, and are the same on every machine. The model never writes a kernel. It serves
to run every step from config to checkpoint.
"""

from __future__ import annotations

import itertools

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = tuple(
    (  # noqa: SIM905 (a literal list would fill a page)
        "class def self return import torch triton Module Model ModelNew super init forward tensor size shape "
        "stride BLOCK SIZE program load store mask offsets arange constexpr empty like get input inputs "
        "output code kernel thinking answer python ptr grid jit nn tl num elements rand cuda device __init__ "
        "``` the and for in to of is = + * -"
    ).split()
)
"""Frequent words of prompts and answers. Each is one token, which makes prompts about half as long as in bytes."""

INDENTS = ("    ", "        ", "\n    ", "\n        ")

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_tokenizer(chat_template: str | None = CHAT_TEMPLATE) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer. Its merges build :data:`WORDS` from left to right."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate((*SPECIAL, *alphabet))}
    merges: list[tuple[str, str]] = []
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for word in (*INDENTS, *WORDS, *(f" {word}" for word in WORDS)):
        letters = byte_level.pre_tokenize_str(word)[0][0]
        for prefix in itertools.accumulate(letters):
            if len(prefix) > 1 and prefix not in vocabulary:
                merges.append((prefix[:-1], prefix[-1]))
                vocabulary[prefix] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=chat_template,
        clean_up_tokenization_spaces=False,
    )


def tiny_model(vocabulary: int, *, hidden: int = 64, context: int = 4096, seed: int = 0) -> LlamaForCausalLM:
    """Return two Llama layers with random weights that depend only on ``seed``. torch's random state is unchanged.

    Args:
        vocabulary: number of tokens.
        hidden: hidden size.
        context: largest number of tokens in a sequence.
        seed: of the weights.
    """
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        initializer_range=0.1,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)
