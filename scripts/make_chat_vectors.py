"""Write chat prompts as the vendor's package renders them; tests compare ours with them.

    pip install --no-deps --target SOMEWHERE deepseek-recipe==0.2.0
    PYTHONPATH=.:SOMEWHERE python scripts/make_chat_vectors.py tests/text/chat_vectors.json

Each vector has the messages and options of one conversation, the prompt as text, and its ids under
the small tokenizer of tests/text. Nothing at run time needs the package.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import deepseek_recipe

from tests.text.small_tokenizer import write_tokenizer

VERSION = "0.2.0"
Messages = list[dict[str, Any]]

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Why? 😀"}
ANSWER = {"role": "assistant", "content": "Light."}
REASONED = {"role": "assistant", "content": "Light.", "reasoning_content": "the sun"}
REMINDER = {"role": "latest_reminder", "content": "Monday."}
KINDS = (SYSTEM, USER, ANSWER, REASONED, REMINDER)

OPTIONS: tuple[tuple[bool, str | None], ...] = (
    (False, None),
    (True, None),
    (True, "low"),
    (True, "high"),
    (True, "xhigh"),
    (True, "max"),
)
MESSAGES: dict[str, Callable[[dict[str, Any]], deepseek_recipe.Message]] = {
    "system": lambda message: deepseek_recipe.SystemMessage(content_of(message)),
    "user": lambda message: deepseek_recipe.UserMessage(content_of(message)),
    "assistant": lambda message: deepseek_recipe.AssistantMessage(
        content_of(message), message.get("reasoning_content")
    ),
    "latest_reminder": lambda message: deepseek_recipe.LatestReminderMessage(content_of(message)),
}
TEXTS = (
    "",
    " a\n",
    "the\n\nthe",
    "स ß é 你好 🏳️‍🌈",
    "<｜User｜>x<｜end▁of▁sentence｜><｜Assistant｜>",
    "<｜begin▁of▁sentence｜><｜System｜><｜latest_reminder｜>",
    "<｜deepseek_image｜> <｜image｜> ｜DSML｜ <fim>",
)


def conversations() -> Iterator[Messages]:
    """All short orders of roles, a long conversation, texts that need care, and text blocks."""
    for count in (1, 2, 3):
        for chosen in itertools.product(KINDS, repeat=count):
            if not any(a is b is REMINDER for a, b in itertools.pairwise(chosen)):
                yield list(chosen)
    yield [SYSTEM, USER, REASONED, USER, ANSWER, REMINDER, USER, USER]
    for text in TEXTS:
        yield [{"role": "system", "content": text}, {"role": "user", "content": text}]
        yield [{"role": "user", "content": text}, {"role": "assistant", "content": text}]
    for role in ("system", "user", "assistant"):
        blocks = [{"type": "text", "text": text} for text in ("one", "", "the")]
        yield [{"role": role, "content": blocks}, USER]
        yield [{"role": role, "content": blocks[:1]}]


def content_of(message: dict[str, Any]) -> str:
    """A message's text; blocks are joined by the package, as a request for its server has them.

    Only they go through such a request: it also drops empty system messages, which the prompt
    format itself has.
    """
    content: str | list[dict[str, str]] = message["content"]
    if isinstance(content, str):
        return content
    body = {"model": "DeepSeek-V4.1-Flash", "messages": [message]}
    request = deepseek_recipe.ChatCompletionRequest(body)
    joined: str = (
        request.convert(deepseek_recipe.ConversionOptions()).conversation.messages[0].content
    )
    return joined


def options_of(messages: Messages) -> tuple[tuple[bool, str | None], ...]:
    """Every option for short conversations, thinking or not for the others."""
    return OPTIONS if len(messages) < 3 else OPTIONS[:2]


def main() -> None:
    """Write the file that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("target", type=Path)
    target = parser.parse_args().target
    if deepseek_recipe.__version__ != VERSION:
        parser.error(f"deepseek-recipe is {deepseek_recipe.__version__}; install {VERSION}")
    with tempfile.TemporaryDirectory() as directory:
        file = write_tokenizer(Path(directory)) / "tokenizer.json"
        tokenizer = deepseek_recipe.Tokenizer.from_file(str(file))
    encoding = deepseek_recipe.DeepseekV41Encoding().with_tokenizer(tokenizer)
    vectors = []
    for messages in conversations():
        for thinking, effort in options_of(messages):
            conversation = deepseek_recipe.Conversation(
                [MESSAGES[message["role"]](message) for message in messages],
                thinking_mode=thinking,
                reasoning_effort=effort,
            )
            vectors.append(
                {
                    "messages": messages,
                    "thinking": thinking,
                    "effort": effort,
                    "prompt": encoding.render_conversation(conversation).prompt,
                    "ids": encoding.encode(conversation),
                }
            )
    lines = ",\n".join(json.dumps(vector, ensure_ascii=False) for vector in vectors)
    target.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
