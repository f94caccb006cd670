"""Encodes tasks, conversations and texts as token ids, and marks the tokens that are learnt."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from kernel_coder.prompts import Message, build_answer, build_messages, encode_prompt
from kernel_coder.prompts.encode import begin_of_prompt, render_prompt
from kernel_coder.sft.config import SftDataConfig
from kernel_coder.tasks import Task
from kernel_coder.tasks.conversations import conversation_rows as conversation_rows
from kernel_coder.tasks.processes import map_in_processes

ENCODED_TOGETHER = 512
"""Number of tasks or rows that a process encodes at a time. A fast tokenizer divides a call with many tasks between all
cores."""


class DroppedError(ValueError):
    """A row is not used. The message is the reason, as a clause that completes "row 3: ..."."""


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """One sequence. ``in_loss[i]`` says whether token i is in the loss, which the first token never is."""

    id: str
    ids: np.ndarray  # int32 [n]
    in_loss: np.ndarray  # bool [n]

    def __len__(self) -> int:
        return len(self.ids)


class Encoder:
    """Makes examples with one tokenizer.

    The prompt gets exactly the ids that it has at sampling (``prompts.encode_prompt``). The answer is encoded
    separately, as the model generates it, and ends with the chat template's end of a turn.

    Args:
        tokenizer: the model's tokenizer.
        config: prompt template, lengths, and which tokens are in the loss.
        plain: ``plain`` for prompts without a chat template.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, config: SftDataConfig, plain: str | None = None) -> None:
        self.tokenizer = tokenizer
        self.config = config
        self.plain = plain
        self.end = [int(tokenizer.eos_token_id)] if plain else end_of_turn(tokenizer)
        self.begin = begin_of_prompt(tokenizer, plain)

    def texts_of(self, task: Task) -> tuple[str, str]:
        """Return the texts of a task's example: its prompt, and the rest of the answer with its known solution."""
        if task.solution is None:
            raise DroppedError("it has no known solution")
        messages = build_messages(task, self.config.prompt_template, one_shot=self.config.one_shot)
        thinking = task.metadata.get("thinking") or self.config.thinking
        try:
            answer = build_answer(task.solution, str(thinking))
        except ValueError as error:
            raise DroppedError(str(error)) from None
        begun = messages[-1]["content"] if messages[-1]["role"] == "assistant" else ""
        if not answer.startswith(begun):
            raise DroppedError("its answer does not start with the beginning that the prompt template gives")
        return render_prompt(self.tokenizer, messages, self.plain), answer[len(begun) :]

    def of_texts(self, names: Sequence[str], texts: Sequence[tuple[str, str]]) -> list[Example | DroppedError]:
        """Return the examples of many prompts and answers, or why they are dropped. A fast tokenizer encodes them on
        all cores."""
        if not texts:
            return []
        ids = self.tokenizer([text for pair in texts for text in pair], add_special_tokens=False)["input_ids"]
        found: list[Example | DroppedError] = []
        for name, prompt, answer in zip(names, ids[::2], ids[1::2], strict=True):
            try:
                found.append(self._finished(name, [(self.begin + prompt, False), (answer + self.end, True)]))
            except DroppedError as error:
                found.append(error)
        return found

    def of_messages(self, name: str, messages: Sequence[Message], asked: int = 0) -> Example:
        """Return the example of a conversation. The assistant's messages are learnt, except in the first ``asked``
        ones."""
        parts: list[tuple[list[int], bool]] = []
        so_far: list[int] = []
        for place, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            if place == 0:
                raise DroppedError("it begins with an answer")
            prompt = encode_prompt(self.tokenizer, messages[:place], self.plain)
            if prompt[: len(so_far)] != so_far:
                raise DroppedError("the chat template writes an earlier answer differently in a later turn")
            answer = self._text(message["content"]) + self.end
            parts += [(prompt[len(so_far) :], False), (answer, place >= asked)]
            so_far = prompt + answer
        if not any(learnt for _, learnt in parts):
            raise DroppedError("it has no answer")
        return self._finished(name, parts)

    def of_text(self, name: str, text: str) -> list[Example]:
        """Return the examples of a text: pieces of at most ``max_length`` tokens, which overlap by one token."""
        begin = [] if self.tokenizer.bos_token_id is None else [int(self.tokenizer.bos_token_id)]
        ids = [*begin, *self._text(text), int(self.tokenizer.eos_token_id)]
        size = self.config.max_length
        pieces = [ids[start : start + size] for start in range(0, len(ids) - 1, size - 1)]
        return [
            self._finished(f"{name}/{place}", [(piece[:1], False), (piece[1:], True)])
            for place, piece in enumerate(pieces)
        ]

    def _text(self, text: str) -> list[int]:
        return [int(i) for i in self.tokenizer.encode(text, add_special_tokens=False)]

    def _finished(self, name: str, parts: Iterable[tuple[list[int], bool]]) -> Example:
        parts = list(parts)
        ids = np.array([token for part, _ in parts for token in part], dtype=np.int32)
        in_loss = np.array([learnt for part, learnt in parts for _ in part], dtype=bool)
        if not self.config.assistant_only_loss:
            in_loss[:] = True
        in_loss[0] = False  # no token predicts it
        if len(ids) > self.config.max_length:
            raise DroppedError(f"it has {len(ids)} tokens, more than data.max_length = {self.config.max_length}")
        return Example(name, ids, in_loss)


def end_of_turn(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the tokens that end an answer: all that the chat template writes after it, up to the first special token.

    That token can differ from the tokenizer's end of sequence: Llama 3 ends a turn with ``<|eot_id|>``, and the
    tokenizer of a GGUF file may name a wrong one. What a template writes after the special token, such as a line end,
    is left out, because the model stops before it. If the template writes no special token, the answer ends with the
    end-of-sequence token.
    """
    eos = [int(tokenizer.eos_token_id)]
    asked: list[dict[str, str]] = [{"role": "user", "content": "?"}]
    answered = [*asked, {"role": "assistant", "content": "!"}]
    before = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
    after = tokenizer.apply_chat_template(answered, tokenize=False, add_generation_prompt=False)
    if not (isinstance(before, str) and isinstance(after, str) and after.startswith(f"{before}!")):
        return eos
    written = [int(i) for i in tokenizer.encode(after[len(before) + 1 :], add_special_tokens=False)]
    special = {*tokenizer.all_special_ids, *(i for i, t in tokenizer.added_tokens_decoder.items() if t.special)}
    first = next((place for place, i in enumerate(written) if i in special), None)
    return eos if first is None else written[: first + 1]


def encode_tasks(encoder: Encoder, tasks: Iterable[Task], num_proc: int = 1) -> tuple[list[Example], list[str]]:
    """Return the examples of tasks, and a sentence for each task that was dropped.

    ``num_proc`` processes encode them (:func:`kernel_coder.tasks.processes.map_in_processes`).
    """
    return _encoded_by(partial(_encoded, encoder), tasks, num_proc)


def _encoded_by(
    encode: Callable[[Any], tuple[list[Example], list[str]]], items: Iterable[Any], num_proc: int
) -> tuple[list[Example], list[str]]:
    """Return what ``encode`` makes of lists of :data:`ENCODED_TOGETHER` items, put together."""
    remaining = iter(items)
    together = iter(lambda: list(islice(remaining, ENCODED_TOGETHER)), [])
    examples: list[Example] = []
    dropped: list[str] = []
    for some, problems in map_in_processes(encode, together, num_proc):
        examples += some
        dropped += problems
    return examples, dropped


def _encoded(encoder: Encoder, tasks: Sequence[Task]) -> tuple[list[Example], list[str]]:
    """Return the examples of a few tasks, which the tokenizer encodes in one call."""
    examples: list[Example] = []
    dropped: list[str] = []
    names, texts = [], []
    for task in tasks:
        try:
            texts.append(encoder.texts_of(task))
            names.append(task.id)
        except DroppedError as error:
            dropped.append(f"task {task.id}: {error}")
    for name, found in zip(names, encoder.of_texts(names, texts), strict=True):
        if isinstance(found, Example):
            examples.append(found)
        else:
            dropped.append(f"task {name}: {found}")
    return examples, dropped


def encode_rows(
    encoder: Encoder, rows: Iterable[Mapping[str, Any]], num_proc: int = 1
) -> tuple[list[Example], list[str]]:
    """Return the examples of rows with ``messages``, with ``prompt`` and ``completion``, or with ``text``.

    Also a sentence for each row that was dropped. ``num_proc`` processes encode them.
    """
    return _encoded_by(partial(_encoded_rows, encoder), enumerate(rows, start=1), num_proc)


def _encoded_rows(encoder: Encoder, rows: Sequence[tuple[int, Mapping[str, Any]]]) -> tuple[list[Example], list[str]]:
    """Return the examples of a few rows with their numbers."""
    examples: list[Example] = []
    dropped: list[str] = []
    for number, row in rows:
        name = f"row{number}"
        try:
            if "messages" in row:
                examples.append(encoder.of_messages(name, row["messages"]))
            elif "completion" in row:
                prompt, messages = row["prompt"], _as_messages(row["prompt"], row["completion"])
                asked = 1 if isinstance(prompt, str) else len(prompt)
                examples.append(encoder.of_messages(name, messages, asked))
            elif encoder.config.assistant_only_loss:
                raise ValueError("a text has no answers to learn: set data.assistant_only_loss false")
            else:
                examples += encoder.of_text(name, row["text"])
        except DroppedError as error:
            dropped.append(f"row {number}: {error}")
        except (KeyError, TypeError, AttributeError):
            dropped.append(f"row {number}: its {', '.join(sorted(row))} is not in TRL's format")
    return examples, dropped


def _as_messages(prompt: Any, completion: Any) -> list[Message]:
    asked = [Message(role="user", content=prompt)] if isinstance(prompt, str) else list(prompt)
    said = [Message(role="assistant", content=completion)] if isinstance(completion, str) else list(completion)
    return [*asked, *said]


def fingerprint(examples: Iterable[Example]) -> str:
    """Return the SHA-256 over the ids and loss masks of the examples, in order."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(b"%d:" % len(example))
        digest.update(example.ids.astype("<i4").tobytes())
        digest.update(np.packbits(example.in_loss).tobytes())
    return digest.hexdigest()
