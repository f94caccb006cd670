"""The chat templates of real models, each on a small tokenizer that is trained here, so no hub is needed."""

from __future__ import annotations

from functools import cache

from kernel_coder.models.nano import train_tokenizer
from kernel_coder.models.tiny import tiny_tokenizer
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

TEXTS = [
    "import torch\nimport triton\nimport triton.language as tl\n\n\n",
    "@triton.jit\ndef kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):\n",
    "    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n",
    "    x = tl.load(x_ptr + offsets, mask=offsets < n)\n",
    "<thinking>\nOne program for each row.\n</thinking>\n",
    "<answer>\n```python\nclass ModelNew(nn.Module):\n```\n</answer>",
    "Your module runs, but its results are wrong:\n\noutput has the wrong shape: expected [4, 1], got [4].\n\n",
] * 4

# SmolLM2-Instruct: ChatML with a system message of its own where the conversation has none.
SMOLLM2 = (
    "{% for message in messages %}"
    "{% if loop.first and messages[0]['role'] != 'system' %}"
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# Qwen2.5-Coder-Instruct without tools. This template controls its own white space.
QWEN25 = """\
{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or message.role == "assistant" %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

# As in templates of reasoning models: the reasoning of an answer disappears once a question follows it.
FORGETS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('</think>')[-1] | trim }}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
QWEN_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_level(pieces: list[pre_tokenizers.PreTokenizer], template: str) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(pieces)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=[AddedToken(token, special=True) for token in SPECIAL],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=template,
        clean_up_tokenization_spaces=False,
    )


@cache
def tokenizer_of(name: str) -> PreTrainedTokenizerFast:
    match name:
        case "tiny":
            return tiny_tokenizer()
        case "nano":
            return train_tokenizer(TEXTS, vocab_size=420)
        case "smollm2":
            digits = pre_tokenizers.Digits(individual_digits=True)
            return byte_level([digits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)], SMOLLM2)
        case "qwen2.5":
            split = pre_tokenizers.Split(Regex(QWEN_PIECES), behavior="isolated")
            return byte_level([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)], QWEN25)
    raise ValueError(name)


NAMES = ("tiny", "nano", "smollm2", "qwen2.5")
