"""``kernel-coder-nano``: a model of a few million parameters, made by this project from its own pairs.

``python -m kernel_coder.models.nano tokenizer DATA... --output FOLDER`` trains the tokenizer,
``... init --tokenizer FOLDER --output FOLDER`` makes the untrained model, and
``... export CHECKPOINT --output FOLDER`` writes what is shipped. Before the first stands :mod:`kernel_coder.data.mix`,
between the last two ``kernel-coder sft`` with ``configs/nano-sft.yaml``; ``configs/nano.sh`` is the whole chain. Each
command gives the same bytes for the same input.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from kernel_coder.models.tiny import CHAT_TEMPLATE, SPECIAL
from kernel_coder.prompts import build_answer, build_messages
from kernel_coder.tasks import Task, load_tasks

PROMPT_TEMPLATE = "nano"
VOCABULARY = 1024

TAGS = ("<thinking>", "</thinking>", "<answer>", "</answer>", "```python", "```")
"""One token each: they stand in every answer, and one that is spelt out can be spelt wrongly."""

# A line end with the indentation behind it is one piece, so that a block's depth is one token. Digits stand alone:
# a number that has to be copied out of a prompt is then never cut differently at another place.
TOKEN_PATTERN = r"\n+ *| ?[^\W\d]+|\d| ?[^\w\s]+| +|\s"

TEXT_SUFFIXES = (".py", ".txt", ".md")
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
MAX_BYTES = {"tokenizer.json": 1 << 20, "model.safetensors": 15 * 10**6}


def train_tokenizer(texts: Iterable[str], *, vocab_size: int = VOCABULARY) -> PreTrainedTokenizerFast:
    """Return byte-level BPE over any text, with :data:`TAGS` as tokens; the same texts give the same bytes.

    Raises:
        ValueError: the vocabulary has no room for 256 bytes and the marks.

    >>> tokenizer = train_tokenizer(["x = 1\\n    y = 2\\n"] * 4, vocab_size=280)
    >>> tokenizer.convert_ids_to_tokens(tokenizer.encode("\\n    y"))[0] == "ĊĠĠĠĠ"
    True
    """
    least = 256 + len(SPECIAL) + len(TAGS)
    if vocab_size < least:
        raise ValueError(f"vocab_size must be at least {least}: 256 bytes and {least - 256} marks; got {vocab_size}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(TOKEN_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(TAGS),
        min_frequency=2,
        special_tokens=[AddedToken(token, special=True) for token in SPECIAL],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator((_without_tags(text) for text in texts), trainer)
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def _without_tags(text: str) -> str:
    """What is left to learn merges from: a tag ends a piece."""
    for tag in TAGS:
        text = text.replace(tag, "\n")
    return text


def nano_config(tokenizer: PreTrainedTokenizerBase, **changes: Any) -> LlamaConfig:
    """Return four Llama layers of width 192: 2.0 million parameters with 1,024 tokens, 4 MB in 16 bits."""
    sizes: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 192,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "max_position_embeddings": 2048,
    }
    return LlamaConfig(
        tie_word_embeddings=True,
        initializer_range=0.02,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **{**sizes, **changes},
    )


def nano_model(config: LlamaConfig, *, seed: int = 0) -> LlamaForCausalLM:
    """Return random weights, decided by ``seed``; torch's own random state is left alone.

    The matrices that write into the residual stream begin smaller by the square root of their number, as in GPT-2.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
        for layer in model.model.layers:
            for matrix in (layer.self_attn.o_proj, layer.mlp.down_proj):
                matrix.weight /= (2 * config.num_hidden_layers) ** 0.5
    return model


def corpus(paths: Sequence[str | Path], template: str = PROMPT_TEMPLATE) -> Iterator[str]:
    """Yield the texts in a fixed order: of tasks the prompt and the answer, of ``.py``, ``.txt`` and ``.md`` files the
    whole.

    A path is anything that ``tasks.load_tasks`` takes, a table that :mod:`kernel_coder.sft` reads (``messages``,
    ``prompt`` and ``completion``, ``text``), a text file or a folder of them.

    Raises:
        ValueError, OSError: a path that holds neither.
    """
    for path in paths:
        file = Path(path)
        texts = sorted(one for one in file.rglob("*") if one.suffix in TEXT_SUFFIXES) if file.is_dir() else []
        if file.is_file() and file.suffix in TEXT_SUFFIXES:
            texts = [file]
        if texts and not any("def get_init_inputs" in one.read_text(encoding="utf-8") for one in texts):
            yield from (one.read_text(encoding="utf-8") for one in texts)
        elif (rows := _text_rows(file)) is not None:
            yield from rows
        else:
            for task in load_tasks(str(path)):
                yield from texts_of(task, template)


def texts_of(task: Task, template: str = PROMPT_TEMPLATE) -> list[str]:
    """What is said about a task: the prompt's messages, and its answer if one is known."""
    said = [message["content"] for message in build_messages(task, template)]
    return (
        said if task.solution is None else [*said, build_answer(task.solution, str(task.metadata.get("thinking", "")))]
    )


def _text_rows(file: Path) -> Iterator[str] | None:
    from kernel_coder.tasks.conversations import conversation_rows

    rows = conversation_rows(str(file))
    return None if rows is None else (text for row in rows for text in _texts_in(row))


def _texts_in(row: Mapping[str, Any]) -> Iterator[str]:
    for said in row.values():
        yield from (said,) if isinstance(said, str) else (message["content"] for message in said)


def export(checkpoint: Path, folder: Path, *, dtype: str = "float16") -> dict[str, int]:
    """Writes weights of 16 bits, the tokenizer and nothing of the run; returns the sizes of the files.

    Raises:
        ValueError: a file would be larger than what is shipped may be, or a weight does not fit the dtype.
    """
    model: Any = AutoModelForCausalLM.from_pretrained(_folder(checkpoint), dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model.to(dtype=DTYPES[dtype])
    if not all(bool(parameter.isfinite().all()) for parameter in model.parameters()):
        raise ValueError(f"a weight of {checkpoint} is not finite in {dtype}; export it in bfloat16")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    sizes = {file.name: file.stat().st_size for file in sorted(folder.iterdir()) if file.is_file()}
    for name, most in MAX_BYTES.items():
        if sizes.get(name, 0) > most:
            raise ValueError(f"{name} has {sizes[name]:,} bytes, more than the {most:,} that are shipped")
    return sizes


def _folder(path: Path) -> Path:
    if not path.is_dir():
        raise ValueError(f"{path} is not a folder")
    return path


def main(arguments: list[str] | None = None) -> int:
    """Runs a command and returns its exit code: 0, or 2 after a sentence about a mistake."""
    options = _parser().parse_args(arguments)
    try:
        for line in options.run(options):
            print(line)
    except (ValueError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m kernel_coder.models.nano", description=(__doc__ or "").splitlines()[0], allow_abbrev=False
    )
    commands = parser.add_subparsers(required=True, metavar="tokenizer|init|export")
    tokenizer = commands.add_parser("tokenizer", help="train the tokenizer")
    tokenizer.add_argument("data", nargs="+", help="packaged, tables of tasks or texts, folders, .py or .txt files")
    tokenizer.add_argument("--vocab-size", type=int, default=VOCABULARY)
    tokenizer.add_argument("--prompt-template", default=PROMPT_TEMPLATE)
    tokenizer.set_defaults(run=_tokenizer)
    init = commands.add_parser("init", help="make the untrained model")
    init.add_argument("--tokenizer", type=Path, required=True, help="folder of a tokenizer")
    init.add_argument("--seed", type=int, default=0)
    init.add_argument(
        "--config", type=json.loads, default={}, help='changes of the sizes, e.g. {"num_hidden_layers": 4}'
    )
    init.set_defaults(run=_init)
    export = commands.add_parser("export", help="write what is shipped")
    export.add_argument("checkpoint", type=Path, help="folder of a trained model")
    export.add_argument("--dtype", choices=DTYPES, default="float16")
    export.set_defaults(run=_export)
    for command in (tokenizer, init, export):
        command.add_argument("--output", type=Path, required=True, help="folder to write")
    return parser


def _tokenizer(options: argparse.Namespace) -> Iterator[str]:
    texts = list(corpus(options.data, options.prompt_template))
    if not texts:
        raise ValueError(f"{', '.join(options.data)} has no text")
    tokenizer = train_tokenizer(texts, vocab_size=options.vocab_size)
    tokenizer.save_pretrained(options.output)
    tokens = sum(len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"])
    characters = sum(map(len, texts))
    size = (options.output / "tokenizer.json").stat().st_size
    each = characters / tokens
    yield f"{len(tokenizer):,} tokens from {len(texts):,} texts; {each:.2f} characters a token; {size:,} bytes"
    yield str(options.output)


def _init(options: argparse.Namespace) -> Iterator[str]:
    tokenizer = AutoTokenizer.from_pretrained(_folder(options.tokenizer))
    model = nano_model(nano_config(tokenizer, **options.config), seed=options.seed)
    model.save_pretrained(options.output)
    tokenizer.save_pretrained(options.output)
    yield f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters"
    yield str(options.output)


def _export(options: argparse.Namespace) -> Iterator[str]:
    for name, size in export(options.checkpoint, options.output, dtype=options.dtype).items():
        yield f"{size:>12,}  {name}"
    yield str(options.output)


if __name__ == "__main__":
    sys.exit(main())
