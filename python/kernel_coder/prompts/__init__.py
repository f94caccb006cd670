"""Prompts and answers: what the model is asked, as messages and as token ids, and the form of a good answer."""

from kernel_coder.prompts.answers import build_answer
from kernel_coder.prompts.encode import check_prompt_length, encode_prompt
from kernel_coder.prompts.messages import Message, build_implementation_messages, build_messages, template_names

__all__ = [
    "Message",
    "build_answer",
    "build_implementation_messages",
    "build_messages",
    "check_prompt_length",
    "encode_prompt",
    "template_names",
]
