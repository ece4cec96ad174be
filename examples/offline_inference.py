"""Offline inference in one process, without a server.

    python examples/offline_inference.py
    python examples/offline_inference.py "The answer is" --model_name DIRECTORY_OR_HUB_ID

Without a model it takes DEEPINFER_HF_MODEL_DIR, else the nano checkpoint of the package. run.py and
`deepinfer generate` do the same with more options.
"""

import argparse

from deepinfer import LLM, SamplingParams

PROMPTS = [
    "Pairs: lamp red, rope two, drum tall. Again: rope two, lamp",
    "Pairs: flag soft, tent new. The dog runs to the lake. Again: tent new, flag",
]


def main() -> None:
    parser = argparse.ArgumentParser(description="Answer prompts together in one call.")
    parser.add_argument("prompts", nargs="*", default=PROMPTS)
    parser.add_argument("--model_name", help="checkpoint directory or Hub id")
    parser.add_argument("--ep", type=int, default=1, help="devices for expert parallelism")
    parser.add_argument("--max_tokens", type=int, default=16)
    parser.add_argument("--temperature", type=float, default=0.0)
    given = parser.parse_args()

    params = SamplingParams(temperature=given.temperature, max_tokens=given.max_tokens)
    with LLM(given.model_name, expert_parallel_size=given.ep, progress=True) as llm:
        # One result per prompt, in order; a prompt that is wrong fails alone.
        for result in llm.generate(given.prompts, params):
            print(f"> {result.prompt}\n{result.error or result.text}")
            print(f"  {len(result.token_ids)} tokens, {result.finish_reason}\n")


if __name__ == "__main__":
    main()
