"""Turns chat messages into token ids, without a template language.

Control tokens are inserted by id, and each text is encoded alone and without added tokens, so the
text of a message cannot begin a turn. Source: model specification, section 12.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from deepinfer.errors import NotBuiltYetError, RequestError
from deepinfer.text.tokenizer import Tokenizer

Message = Mapping[str, Any]

BOS: Final = "<｜begin▁of▁sentence｜>"
EOS: Final = "<｜end▁of▁sentence｜>"
SYSTEM: Final = "<｜System｜>"
USER: Final = "<｜User｜>"
ASSISTANT: Final = "<｜Assistant｜>"
REMINDER: Final = "<｜latest_reminder｜>"
THINK: Final = "<think>"
END_THINK: Final = "</think>"
BLANK_LINE: Final = "\n\n"

EFFORTS: Final = {"low": 50, "high": 75, "xhigh": 75, "max": 100}
DEFAULT_EFFORT: Final = "high"
ROLES: Final = ("system", "user", "assistant", "latest_reminder")
_READ_KEYS: Final = ("role", "content", "reasoning_content")
_TOOL_KEYS: Final = ("tools", "tool_calls", "tool_call_id", "prefix")


@dataclass(frozen=True)
class Segment:
    """A piece of a prompt: the spelling of a control token, or a text to be encoded."""

    kind: Literal["control", "text"]
    text: str


def encode_chat(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    thinking: bool = False,
    effort: str | None = None,
) -> list[int]:
    """The ids of a prompt that asks for the next turn of the assistant.

    messages: mappings with `role` (system, user, assistant or latest_reminder) and `content` (a
    string, or a list of {"type": "text", "text": ...}). `reasoning_content` of an assistant is
    allowed and left out, as the format demands. thinking: the answer begins with reasoning. effort:
    of the reasoning: low, high (the default), xhigh (the same as high) or max.

    Errors: RequestError for a wrong message or option, NotBuiltYetError for images, tools and
    prefix continuation, TokenizerError where the tokenizer lacks a token.
    """
    ids: list[int] = []
    for segment in chat_segments(messages, thinking, effort):
        if segment.kind == "text":
            ids += tokenizer.encode(segment.text)
        elif segment.text == BOS:
            ids.append(tokenizer.bos_id)
        elif segment.text == EOS:
            ids.append(tokenizer.eos_id)
        else:
            ids.append(tokenizer.token_id(segment.text))
    return ids


def chat_segments(
    messages: Sequence[Message], thinking: bool = False, effort: str | None = None
) -> list[Segment]:
    """The prompt in pieces; arguments and errors as in `encode_chat`."""
    if not messages:
        raise RequestError("messages is empty: a chat prompt needs at least one message")
    turns = _join_user_turns([_read_message(i, message) for i, message in enumerate(messages)])
    prompt = [_control(BOS)]
    header = _effort_line(thinking, effort)
    if header and turns[0][0] != "system":
        prompt += [_control(SYSTEM), _text(header)]
        header = ""
    for role, content in turns:
        if role == "system":
            prompt += [_control(SYSTEM), _text(header + content)]
            header = ""
        elif role == "user":
            prompt += [_control(USER), _text(content)]
        elif role == "latest_reminder":
            prompt += [_control(REMINDER), _text(content)]
        else:
            prompt += [_control(ASSISTANT), _control(END_THINK), _text(content), _control(EOS)]
    prompt += [_control(ASSISTANT), _control(THINK if thinking else END_THINK)]
    return [segment for segment in prompt if segment.text]


def _control(spelling: str) -> Segment:
    return Segment("control", spelling)


def _text(text: str) -> Segment:
    return Segment("text", text)


def _effort_line(thinking: bool, effort: str | None) -> str:
    """The line that begins the first system block of a thinking prompt."""
    allowed = ", ".join(EFFORTS)
    if not thinking:
        if effort is not None:
            raise RequestError(
                f"effort = {effort!r} has no effect without thinking: set thinking or leave it out"
            )
        return ""
    name = DEFAULT_EFFORT if effort is None else effort
    if name not in EFFORTS:
        raise RequestError(f"effort = {name!r}: must be one of {allowed}")
    return (
        f"Reasoning Effort: {EFFORTS[name]} (range 1-100, the higher the value, "
        f"the more thorough the reasoning){BLANK_LINE}"
    )


def _read_message(index: int, message: Message) -> tuple[str, str]:
    """Role and text of one message."""
    name = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise RequestError(f"{name} = {message!r}: must be a mapping with role and content")
    for key, value in message.items():
        if key in _READ_KEYS or value is None:
            continue
        if key in _TOOL_KEYS:
            if value:
                raise NotBuiltYetError(f"{name}.{key}: tools and continuation are not built yet")
            continue
        raise RequestError(f"{name}.{key}: unknown key; known are {', '.join(_READ_KEYS)}")
    role = message.get("role")
    if role == "tool":
        raise NotBuiltYetError(f"{name}.role = 'tool': tools are not built yet")
    if role not in ROLES:
        raise RequestError(f"{name}.role = {role!r}: must be one of {', '.join(ROLES)}")
    reasoning = message.get("reasoning_content")
    if reasoning is not None and (role != "assistant" or not isinstance(reasoning, str)):
        raise RequestError(f"{name}.reasoning_content: must be a string, in an assistant message")
    return role, _read_content(f"{name}.content", message.get("content"))


def _read_content(name: str, content: object) -> str:
    """A string, or text blocks joined by a blank line."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise RequestError(f"{name} = {content!r}: must be a string or a list of content blocks")
    texts = []
    for i, block in enumerate(content):
        kind = block.get("type") if isinstance(block, Mapping) else None
        if isinstance(kind, str) and "image" in kind:
            raise NotBuiltYetError(f"{name}[{i}]: images are not built yet; send text only")
        text = block.get("text") if isinstance(block, Mapping) and kind == "text" else None
        if not isinstance(text, str):
            raise RequestError(f'{name}[{i}]: must be {{"type": "text", "text": "..."}}')
        texts.append(text)
    return BLANK_LINE.join(texts)


def _join_user_turns(turns: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Join consecutive user messages to one turn, by blank lines. Reminders stay alone."""
    joined: list[tuple[str, str]] = []
    for role, content in turns:
        previous = joined[-1][0] if joined else None
        if role == previous == "latest_reminder":
            raise RequestError(
                "messages has two latest_reminder messages in a row: the prompt format keeps only "
                "one; join them"
            )
        if role == previous == "user":
            joined[-1] = ("user", joined[-1][1] + BLANK_LINE + content)
        else:
            joined.append((role, content))
    return joined
