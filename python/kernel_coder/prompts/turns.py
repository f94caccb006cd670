"""Later turns of a conversation: the feedback on an answer, and the token ids of the next prompt.

An answer is never encoded again from its text. The same text can have other token ids than those sampled, and training
on other ids would use wrong probabilities. So the next prompt consists of the last prompt, the sampled answer and the
*glue*: the ids that the chat template puts between one answer and the next.
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
"""Upper limit for the summary of an answer's reasoning, in characters (about 100 tokens), so that several fit into a
prompt."""


def build_feedback(
    task: Task, verdict: Any, template: str | Path = "feedback", *, turn: int, max_turns: int, **facts: Any
) -> list[Message]:
    """Return the messages that tell the model the verdict on its answer.

    Args:
        task: the task.
        verdict: the :class:`kernel_coder.judge.Verdict` on the answer.
        template: the name of a packaged template (``feedback``, ``evolve``, ``nano``) or the path of a ``.jinja`` file
            with a block ``user`` and, optionally, a block ``assistant`` with the beginning of the next answer. It may
            use ``verdict``, ``turn``, ``max_turns``, ``task``, ``entry_point``, ``language``, ``fence`` and ``facts``.
        turn: the number of the answer, from 1.
        max_turns: the highest number of answers.
        facts: further values for the template, as ``facts.name``.

    Raises:
        ValueError: the template does not exist or is invalid.

    >>> from kernel_coder.judge import example_verdict
    >>> task = Task(id="t", source="example", reference="class Model: ...")
    >>> wrong = example_verdict("wrong_output", feedback="output has the wrong shape.")
    >>> print(build_feedback(task, wrong, "nano", turn=1, max_turns=3)[0]["content"])
    wrong_output
    output has the wrong shape.
    """
    feedback = verdict.feedback or verdict.reason or ""
    context = {
        "task": task,
        "entry_point": task.entry_point,
        "language": LANGUAGES[task.backend],
        "verdict": verdict,
        "feedback": feedback,
        "fence": fence_for(feedback),
        "turn": turn,
        "max_turns": max_turns,
        "facts": facts,
    }
    return FEEDBACK.fill(template, context, f" for task {task.id}")


def feedback_template_names() -> list[str]:
    """Return the names of the packaged feedback templates.

    >>> feedback_template_names()
    ['evolve', 'feedback', 'nano']
    """
    return FEEDBACK.names()


def check_feedback_template(template: str | Path) -> None:
    """Raises ValueError if :func:`build_feedback` cannot use the template."""
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
    """Return the token ids of the next prompt: ``prompt_ids``, then ``completion_ids``, then the glue.

    Args:
        tokenizer: as for :func:`kernel_coder.prompts.encode_prompt`.
        shown: the messages that ``prompt_ids`` encode.
        prompt_ids: the ids of the last prompt.
        completion_ids: the ids of the answer, as sampled.
        reply: the messages after the answer, from :func:`build_feedback`.
        chat_template: as for ``encode_prompt``.
        ended: whether the model ended its answer itself. Then the answer already contains the end token of the glue.

    Raises:
        ValueError: the template rewrites earlier turns once later ones follow, so ids cannot be appended.
    """
    glue = turn_glue(tokenizer, shown, reply, chat_template)
    if ended and completion_ids and glue and glue[0] == completion_ids[-1]:
        glue = glue[1:]
    return [*prompt_ids, *completion_ids, *glue]


def turn_glue(
    tokenizer: Any, shown: Sequence[Message], reply: Sequence[Message], chat_template: str | Path | None = None
) -> list[int]:
    """Return the ids between the end of an answer and the beginning of the next, including the answer's end token."""
    if chat_template == PLAIN:
        return encode_text(tokenizer, "\n\n" + plain_prompt(reply))
    whole = "".join(message["content"] for message in (*shown, *reply))
    names = (f"said-{number}-7f3a" for number in itertools.count())
    # Marks replace the answers, whose ids are known. They contain reasoning in both usual forms, so that a template
    # that removes reasoning from earlier turns changes them, which is detected below.
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
            "the chat template rewrites earlier turns once later ones follow, so an answer cannot be kept as it was "
            "sampled; set rollout.earlier_reasoning to drop, or use another model.chat_template"
        )
    return encode_text(tokenizer, tail)


def short_answer(answer: str, *, summary: bool = False) -> str:
    """Return an answer for the prompts of later turns: without its reasoning, or with a summary of it.

    ``summary`` keeps the last paragraph of the reasoning, where a model usually states its decision, or of the text in
    ``<summary>`` tags if there are any. Text in another form is returned unchanged.

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
