"""Text as it is generated: in a plain loop, and from many requests in an event loop.

python examples/streaming.py
python examples/streaming.py --model_name DIRECTORY_OR_HUB_ID
"""

import argparse
import asyncio

from deepinfer import LLM, SamplingParams

PARAMS = SamplingParams(temperature=0.7, max_tokens=16, seed=1)
QUESTIONS = [
    "Here is a story. The drum belongs to Anna. The frog sings by the pond. Who owns the drum?",
    "Here is a story. The box holds seven coins. How many coins are in the box?",
]


def stream(llm: LLM) -> None:
    """Print one answer piece by piece. To leave the loop early ends the request."""
    for delta in llm.stream("Pairs: lamp red, rope two. Again: rope", PARAMS):
        print(delta.text, end="", flush=True)
        if delta.finish_reason:
            print(f"\n  {delta.finish_reason} {delta.error}")


async def answer(llm: LLM, question: str) -> str:
    """The answer to one chat, put together from its deltas."""
    text = ""
    async for delta in llm.stream_async([{"role": "user", "content": question}], PARAMS):
        text += delta.text
    return text


async def stream_together(llm: LLM) -> None:
    """Many streams share the engine's steps. To cancel a task ends its request."""
    answers = await asyncio.gather(*(answer(llm, question) for question in QUESTIONS))
    for question, text in zip(QUESTIONS, answers, strict=True):
        print(f"> {question}\n{text}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Stream answers, one and then several at a time.")
    parser.add_argument("--model_name", help="checkpoint directory or Hub id")
    with LLM(parser.parse_args().model_name) as llm:
        stream(llm)
        asyncio.run(stream_together(llm))


if __name__ == "__main__":
    main()
