"""Offline inference, one process, no server: the main job of run.py as an example.

    python examples/offline_inference.py
    python examples/offline_inference.py "Why is the sky blue?" --model_name DIRECTORY_OR_HUB_ID

With no arguments it loads the bundled checkpoint and answers a default prompt, streaming the text,
and ends with a summary. It takes the flags of run.py (`--help` lists them).
"""

import sys

import deepinfer_launcher

if __name__ == "__main__":
    sys.exit(deepinfer_launcher.run(sys.argv[1:]))
