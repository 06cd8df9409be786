"""What a row of text may be: a text, a prompt with its completion, or a conversation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ....converters.values import Array
from ....errors import BadInputError
from ..rows.tables import Refused, Row, lacking, refuse
from .coding import Coder

if TYPE_CHECKING:
    from ...configuration.data import TextColumns

CHUNK: Final = 1000  # texts that the tokenizer gets at a time
IGNORED: Final = -100  # a label that counts for nothing


class Form(NamedTuple):
    """A row, of one of three forms: ``text`` alone, ``prompt`` and ``text``, or ``messages``."""

    text: str = ""
    prompt: str | None = None
    messages: Sequence[Mapping[str, Any]] | None = None
    tools: Any = None

    @property
    def blank(self) -> bool:
        """Whether there is nothing to learn in it."""
        return self.messages is None and not self.text.strip()

    @property
    def bare(self) -> bool:
        """Whether it is a text alone."""
        return self.messages is None and self.prompt is None


class Coded(NamedTuple):
    """Token ids and, for each, the label: the id itself, or -100 in what is only to be read; int32."""

    ids: Array
    labels: Array

    def part(self, first: int, last: int) -> Coded:
        """Return the tokens from FIRST to before LAST."""
        return Coded(self.ids[first:last], self.labels[first:last])


class Way(NamedTuple):
    """How forms are written.

    Attributes:
        template: whether the chat template writes a prompt with its completion; ``None`` where there is one.
        mask_prompt: whether a prompt is only to be read.
    """

    template: bool | None
    mask_prompt: bool


def form_of(row: Row, columns: TextColumns) -> Form | Refused:
    """Return the form of ROW, whose columns have the names COLUMNS; of several forms the first here."""
    prompt, completion = row.get(columns.prompt), row.get(columns.completion)
    if isinstance(prompt, str) and isinstance(completion, str):
        return Form(completion, prompt, tools=row.get(columns.tools))
    if columns.messages in row:
        return conversation(row[columns.messages], row.get(columns.tools))
    text = row.get(columns.text)
    if isinstance(text, str):
        return Form(text)
    if columns.prompt in row or columns.completion in row:
        wanted = {columns.prompt: prompt, columns.completion: completion}
        return lacking(row, [name for name, it in wanted.items() if not isinstance(it, str)])
    return lacking(row, [columns.text])


def conversation(messages: Any, tools: Any) -> Form | Refused:
    """Return MESSAGES as a form, or what is wrong with them."""
    if not isinstance(messages, list) or not messages:
        return Refused("its messages are no list with a message in it")
    for number, message in enumerate(messages, 1):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            return Refused(f"message {number} is no object with a role")
    return Form(messages=messages, tools=tools)


def coded(
    forms: Sequence[tuple[str, Form]], coder: Coder, way: Way, path: Path
) -> list[tuple[str, Coded]]:
    """Return the tokens of FORMS, each with its place in the file at PATH.

    Raises:
        BadInputError: a chat template is wanted, and there is none.
        MismatchError: forms that the chat template does not take.
    """
    template = coder.chats if way.template is None else way.template
    if not coder.chats and (template or any(form.messages is not None for _, form in forms)):
        raise BadInputError("the tokenizer has no chat template; --set tokenizer=DIR with one")
    found = list(_coded([form for _, form in forms], coder, way._replace(template=template)))
    problems = [
        f"{place}: {it}"
        for (place, _), it in zip(forms, found, strict=True)
        if isinstance(it, Refused)
    ]
    refuse(problems, f"{path} does not suit the tokenizer")
    return [
        (place, it) for (place, _), it in zip(forms, found, strict=True) if isinstance(it, Coded)
    ]


def largest(texts: Iterable[Coded]) -> int:
    """Return the largest id of TEXTS."""
    return max((int(text.ids.max()) for text in texts if len(text.ids)), default=0)


def _coded(forms: Sequence[Form], coder: Coder, way: Way) -> Iterator[Coded | Refused]:
    rest = iter(forms)
    while chunk := list(islice(rest, CHUNK)):
        these = [_as_chat(form) if way.template else form for form in chunk]
        plain = iter(_plain([form for form in these if form.messages is None], coder, way))
        for form in these:
            yield next(plain) if form.messages is None else _chat(form, coder, way)


def _as_chat(form: Form) -> Form:
    if form.prompt is None:
        return form
    question = {"role": "user", "content": form.prompt}
    return form._replace(messages=[question, {"role": "assistant", "content": form.text}])


def _plain(forms: Sequence[Form], coder: Coder, way: Way) -> Iterator[Coded]:
    """Yield texts, and prompts with their completions, which are coded apart as in generation."""
    with_prompt = [form for form in forms if form.prompt is not None]
    prompts = iter(coder.encode([str(form.prompt) for form in with_prompt]))
    completions = iter(coder.encode([form.text for form in with_prompt], bare=True))
    texts = iter(coder.encode([form.text for form in forms if form.prompt is None]))
    for form in forms:
        prompt = [] if form.prompt is None else coder.open(next(prompts))
        rest = next(texts if form.prompt is None else completions)
        yield labelled(coder.ended([*prompt, *rest]), len(prompt) if way.mask_prompt else 0)


def _chat(form: Form, coder: Coder, way: Way) -> Coded | Refused:
    """Return the tokens of a conversation; its prompt is all before the last message, as in mlx-lm."""
    messages = form.messages or ()
    try:
        ids = coder.chat(messages, form.tools)
        if not way.mask_prompt or len(messages) == 1:
            return labelled(ids, 0)
        answered = messages[-1]["role"] == "assistant"
        prompt = coder.chat(messages[:-1], form.tools, asked=answered)
    except ValueError as error:
        return Refused(f"the chat template does not take its messages ({error})")
    if ids[: len(prompt)] != prompt:
        return Refused("the chat template writes the prompt otherwise where an answer follows")
    return labelled(ids, len(prompt))


def labelled(ids: Sequence[int], prompt: int = 0) -> Coded:
    """Return IDS with their labels, the first PROMPT of which do not count."""
    array = np.asarray(ids, np.int32)
    return Coded(array, np.where(np.arange(len(array)) < prompt, np.int32(IGNORED), array))
