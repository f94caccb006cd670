"""Prompts as messages and as token ids, feedback after a verdict, and the form of an answer."""

from kernel_coder.prompts.answers import build_answer
from kernel_coder.prompts.blocks import Message
from kernel_coder.prompts.encode import check_prompt_length, encode_prompt
from kernel_coder.prompts.messages import Example, build_implementation_messages, build_messages, template_names
from kernel_coder.prompts.turns import (
    build_feedback,
    check_feedback_template,
    extend_prompt,
    feedback_template_names,
    short_answer,
)

__all__ = [
    "Example",
    "Message",
    "build_answer",
    "build_feedback",
    "build_implementation_messages",
    "build_messages",
    "check_feedback_template",
    "check_prompt_length",
    "encode_prompt",
    "extend_prompt",
    "feedback_template_names",
    "short_answer",
    "template_names",
]
