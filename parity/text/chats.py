"""Conversations that a chat template is asked to render, each with what makes templates differ."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

QUESTION: Final = {"role": "user", "content": "How warm is it in Oslo?"}
ANSWER: Final = {"role": "assistant", "content": "Five degrees, and it will rain."}
AGAIN: Final = {"role": "user", "content": "  Even   <this> one?\n"}
SYSTEM: Final = {"role": "system", "content": "Answer in one sentence."}
TOOL: Final = {
    "type": "function",
    "function": {
        "name": "temperature",
        "description": "Say how warm it is.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Where."}},
            "required": ["city"],
        },
        "return": {"type": "number", "description": "Degrees."},
    },
}
CALL: Final = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "call00001",
            "type": "function",
            "function": {"name": "temperature", "arguments": {"city": "Oslo"}},
        }
    ],
}
RESULT: Final = {
    "role": "tool",
    "name": "temperature",
    "tool_call_id": "call00001",
    "content": "17.5",
}


class Chat(NamedTuple):
    """A conversation and how it is rendered.

    Attributes:
        messages: as ``apply_chat_template`` takes them.
        options: more of its arguments.
    """

    messages: list[dict[str, Any]]
    options: dict[str, Any]


CHATS: Final = {
    "with generation prompt": Chat([QUESTION, ANSWER, AGAIN], {"add_generation_prompt": True}),
    "without generation prompt": Chat([QUESTION, ANSWER, AGAIN], {}),
    "one question": Chat([QUESTION], {"add_generation_prompt": True}),
    "a system message": Chat([SYSTEM, QUESTION, ANSWER], {}),
    "ending in an answer": Chat([QUESTION, ANSWER], {"add_generation_prompt": True}),
    "an answer to continue": Chat([QUESTION, ANSWER], {"continue_final_message": True}),
    "tools": Chat([SYSTEM, QUESTION], {"tools": [TOOL], "add_generation_prompt": True}),
    "a call of a tool": Chat(
        [QUESTION, CALL, RESULT, ANSWER], {"tools": [TOOL], "add_generation_prompt": True}
    ),
    "without thinking": Chat([QUESTION], {"add_generation_prompt": True, "enable_thinking": False}),
    "two questions in a row": Chat([QUESTION, AGAIN], {}),
    "many turns": Chat([SYSTEM, *[QUESTION, ANSWER] * 6, AGAIN], {"add_generation_prompt": True}),
    "many tools": Chat([QUESTION], {"tools": [TOOL] * 6, "add_generation_prompt": True}),
    "thoughts": Chat([QUESTION, ANSWER | {"reasoning_content": "It is May."}, AGAIN], {}),
    "content in parts": Chat([QUESTION | {"content": [{"type": "text", "text": "How?"}]}], {}),
}
PLAIN: Final = "one question"
LATEST: Final = "content in parts"  # of these chats
SET: Final = "one question, with "  # before the name of a variable that a template reads
GIVEN: Final = re.compile(
    "messages|tools|add_generation_prompt|raise_exception|strftime_now|.*_tokens?|.*_token_id"
)


def settings_chats(template: str) -> dict[str, Chat]:
    """Return a chat for each variable that only those set who ask for what it does.

    >>> list(settings_chats("{{ bos_token }}{% if enable_thinking and messages %}<think>{% endif %}"))
    ['one question, with enable_thinking']
    """
    from jinja2 import Environment, TemplateError, meta

    try:
        document = Environment(extensions=["jinja2.ext.loopcontrols"]).parse(template)  # noqa: S701
    except TemplateError:  # what it says when it is rendered is compared
        return {}
    names = sorted(meta.find_undeclared_variables(document))
    return {
        f"{SET}{name}": Chat([QUESTION], {"add_generation_prompt": True, name: True})
        for name in names
        if not GIVEN.fullmatch(name)
    }
