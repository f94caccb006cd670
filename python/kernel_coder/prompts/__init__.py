"""Prompts: what the model is asked, as messages and as token ids."""

from kernel_coder.prompts.encode import check_prompt_length, encode_prompt
from kernel_coder.prompts.messages import Message, build_messages, template_names

__all__ = ["Message", "build_messages", "check_prompt_length", "encode_prompt", "template_names"]
