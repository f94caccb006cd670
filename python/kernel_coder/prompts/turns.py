"""The turns after the first: what the model is told about its answer, and the ids that are put behind it.

The ids of what was said are never made anew. A text does not always give back the ids that it was sampled as, and a
model that is trained on other ids than it saw is trained on the wrong probabilities. So the next prompt is the last
prompt, the answer as sampled, and the *glue*: the ids that the chat template puts between an answer and the next one.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernel_coder.prompts.blocks import Message, TemplateKind, fence_for
from kernel_coder.prompts.encode import PLAIN, encode_text, plain_prompt, render_prompt
from kernel_coder.prompts.messages import LANGUAGES, TEMPLATES
from kernel_coder.tasks import Task

FEEDBACK = TemplateKind("feedback template", TEMPLATES / "feedback", ("user", "assistant"))
MARK = "<think>\n{name}\n</think>\n<thinking>\n{name}\n</thinking>\n{name}"
SUMMARY_CHARACTERS = 400
"""What is kept of a reasoning that is summarised, at most."""


def build_feedback(
    task: Task, verdict: Any, template: str | Path = "feedback", *, turn: int, max_turns: int, **facts: Any
) -> list[Message]:
    """What the model is told about its answer.

    Args:
        task: the task.
        verdict: a :class:`kernel_coder.judge.Verdict` on the answer.
        template: the name of a template that comes with Kernel Coder (``feedback``, ``nano``) or the path of a
            ``.jinja`` file: a block ``user`` and, if the next answer is to begin in a certain way, a block
            ``assistant``. It may use ``verdict``, ``turn``, ``max_turns``, ``task``, ``entry_point``, ``language``,
            ``fence`` and ``facts``.
        turn: the number of the answer, from 1.
        max_turns: how many there may be.
        facts: whatever else the template is to know, as ``facts.name``.

    Raises:
        ValueError: no such template, or one that is not one.

    >>> from kernel_coder.judge import example_verdict
    >>> task = Task(id="t", source="example", reference="class Model: ...")
    >>> wrong = example_verdict("wrong_output", feedback="output has the wrong shape.")
    >>> print(build_feedback(task, wrong, "nano", turn=1, max_turns=3)[0]["content"])
    wrong_output
    output has the wrong shape.
    """
    said = verdict.feedback or verdict.reason or ""
    context = {
        "task": task,
        "entry_point": task.entry_point,
        "language": LANGUAGES[task.backend],
        "verdict": verdict,
        "feedback": said,
        "fence": fence_for(said),
        "turn": turn,
        "max_turns": max_turns,
        "facts": facts,
    }
    return FEEDBACK.fill(template, context, f" for task {task.id}")


def feedback_template_names() -> list[str]:
    """The feedback templates that come with Kernel Coder.

    >>> feedback_template_names()
    ['feedback', 'nano']
    """
    return FEEDBACK.names()


def check_feedback_template(template: str | Path) -> None:
    """Raises ValueError unless :func:`build_feedback` can use the template."""
    FEEDBACK.load(template)


def extend_prompt(
    tokenizer: Any,
    shown: Sequence[Message],
    prompt_ids: Sequence[int],
    completion_ids: Sequence[int],
    reply: Sequence[Message],
    chat_template: str | Path | None = None,
    *,
    ended: bool = True,
) -> list[int]:
    """The ids of the next prompt: ``prompt_ids``, then ``completion_ids``, then the glue.

    Args:
        tokenizer: as :func:`kernel_coder.prompts.encode_prompt` takes it.
        shown: the messages that ``prompt_ids`` encode.
        prompt_ids: what the model was given.
        completion_ids: what it said, as sampled.
        reply: the messages that follow its answer, of :func:`build_feedback`.
        chat_template: as for ``encode_prompt``.
        ended: the model ended its answer itself, and so the answer holds the mark of its end (if it is the template's).

    Raises:
        ValueError: the template writes earlier turns in another way once there is a later one, so that no ids can be
            put behind them.
    """
    glue = turn_glue(tokenizer, shown, reply, chat_template)
    if ended and completion_ids and glue and glue[0] == completion_ids[-1]:
        glue = glue[1:]
    return [*prompt_ids, *completion_ids, *glue]


def turn_glue(
    tokenizer: Any, shown: Sequence[Message], reply: Sequence[Message], chat_template: str | Path | None = None
) -> list[int]:
    """The ids from the end of an answer to the beginning of the next, the mark of the answer's end included."""
    if chat_template == PLAIN:
        return encode_text(tokenizer, "\n\n" + plain_prompt(reply))
    whole = "".join(message["content"] for message in (*shown, *reply))
    names = (f"said-{number}-7f3a" for number in itertools.count())
    # Marks stand for answers, whose ids are known. They look like reasoning and answer in both usual forms: a template
    # that takes reasoning out of earlier turns shows itself by what it does to them.
    free = (MARK.format(name=name) for name in names if name not in whole)
    begun = [Message(role=m["role"], content=next(free)) if m["role"] == "assistant" else m for m in shown[:-1]]
    last, mark = shown[-1], next(free)
    if last["role"] == "assistant":
        asked, answered = [*begun, last], [*begun, Message(role="assistant", content=last["content"] + mark)]
    else:
        asked = [*begun, last]
        answered = [*asked, Message(role="assistant", content=mark)]
    before = render_prompt(tokenizer, asked, chat_template)
    after = render_prompt(tokenizer, [*answered, *reply], chat_template)
    head, found, tail = after.partition(mark)
    if not found or head != before:
        raise ValueError(
            "the chat template writes earlier turns in another way once there is a later one, so an answer cannot be "
            "kept as it was sampled; set rollout.earlier_reasoning to drop, or take another model.chat_template"
        )
    return encode_text(tokenizer, tail)


def short_answer(answer: str, *, summary: bool = False) -> str:
    """An answer for the context of later turns, without its reasoning, or with the end of it.

    ``summary`` keeps the last paragraph of the reasoning, which is where a model says what it decided; a paragraph in
    ``<summary>`` tags goes before it. Text in another form is returned as it is.

    >>> short_answer("<thinking>Hm. Long.\\n\\nOne load a row.</thinking><answer>x</answer>")
    '<answer>x</answer>'
    >>> short_answer("<thinking>Hm. Long.\\n\\nOne load a row.</thinking><answer>x</answer>", summary=True)
    '<thinking>\\nOne load a row.\\n</thinking>\\n<answer>x</answer>'
    """
    thought, closed, rest = answer.partition("</thinking>")
    if not closed or "<answer>" not in rest:
        return answer
    before, opened, thinking = thought.partition("<thinking>")
    if not opened:
        before, thinking = "", thought
    rest = rest.lstrip()
    if not summary:
        return f"{before}{rest}"
    inside = thinking.rpartition("<summary>")[2].partition("</summary>")[0] if "<summary>" in thinking else thinking
    paragraphs = [paragraph.strip() for paragraph in inside.split("\n\n") if paragraph.strip()]
    last = paragraphs[-1][-SUMMARY_CHARACTERS:] if paragraphs else ""
    return f"{before}<thinking>\n{last}\n</thinking>\n{rest}" if last else f"{before}{rest}"
