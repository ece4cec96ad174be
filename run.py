"""Answer a prompt with DeepSeek-V4.1: `python run.py [OPTIONS] [PROMPT ...]`, `--help` for all.

With no arguments it loads the small trained checkpoint of the package and answers a question about
a story. The accelerator is chosen by DEEPINFER_ACCELERATOR. The file works from a checkout and as
a lone copy beside an installed wheel: it needs nothing of the folder that it lies in.
"""

import importlib.util
import sys


def main() -> int:
    """Run the main job; returns the exit status."""
    try:
        import deepinfer_launcher
    except ModuleNotFoundError:
        vendor = importlib.util.find_spec("deepinfer") is not None
        print(
            "error: DeepInfer is not installed for this Python"
            f" ({sys.executable}): run ./build.sh in a checkout of it, or install its wheel"
            f" (deepinfer_core-*.whl) by path: {sys.executable} -m pip install PATH"
            + " (the package `deepinfer` that is installed is another project's)"
            * vendor,
            file=sys.stderr,
        )
        return 3
    except KeyboardInterrupt:
        return 130
    return deepinfer_launcher.run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
