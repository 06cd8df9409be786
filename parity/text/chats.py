"""Conversations that a chat template is asked to render, each with what makes templates differ."""

from __future__ import annotations

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
}
