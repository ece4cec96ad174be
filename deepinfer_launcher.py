"""Entry of the `deepinfer` command and of run.py; checks the environment before anything runs.

The import package `deepinfer` is contested: the public registry has a distribution of that very
name, the model vendor's own engine, whose files land in the same folder as ours (distribution
`deepinfer-core`). Whichever is installed last overwrites the other's `deepinfer/__init__.py`, and
uninstalling either breaks the other. This module lies outside that folder, so it still runs then,
and it says what happened and how to mend it instead of failing somewhere inside a mixture.

Nothing of `deepinfer` is executed before the checks have passed; they read metadata only. An
environment that fails them ends the command with exit status `ENVIRONMENT_EXIT_CODE`.

`python deepinfer_launcher.py` runs the checks alone (build.sh does, with `-I`, so that neither the
working directory nor PYTHONPATH can stand in for an installation).
"""

from __future__ import annotations

import errno
import importlib.util
import io
import json
import os
import re
import shlex
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlparse

CONTESTED = "deepinfer"  # the vendor's distribution, and the import package that both install
CORE = "deepinfer-core"
ENVIRONMENT_EXIT_CODE = 3
OUTPUT_EXIT_CODE = 1
CRASHED_EXIT_CODE = 1
INTERRUPTED_EXIT_CODE = 130
BROKEN_PIPE_EXIT_CODE = 141

OUTPUT_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}

HERE = Path(__file__).resolve().parent


def main() -> int:
    """Run the `deepinfer` command on the process's arguments; returns the exit status."""

    def command() -> int | None:
        from deepinfer.cli.main import main as deepinfer_command

        result: int | None = deepinfer_command()
        return result

    return _launch(command)


def run(argv: Sequence[str]) -> int:
    """Run the main job (the body of run.py) on the arguments `argv`; returns the exit status."""

    def command() -> int | None:
        from deepinfer.cli.run import main as run_command

        result: int | None = run_command(list(argv))
        return result

    return _launch(command)


def environment_problem() -> str | None:
    """What keeps this environment from running DeepInfer, with the commands that mend it.

    None when all is well: no distribution `deepinfer` is installed, `deepinfer-core` is, the
    `deepinfer` package that an import would find is the one beside this module, and every file
    that `deepinfer-core` installed there is still its own.
    """
    return vendor_problem() or _installation_problem()


def vendor_problem() -> str | None:
    """The message about an installed vendor distribution `deepinfer`; None if there is none."""
    vendor = _distribution(CONTESTED)
    if vendor is None:
        return None
    imported = _origin(CONTESTED)
    ours = HERE / CONTESTED / "__init__.py"
    if imported == ours and _damaged_files():
        effect = "it has overwritten files of ours"
    elif imported == ours:
        effect = "its files and ours are mixed, or will be after the next install or uninstall"
    else:
        effect = f"`import deepinfer` finds {imported or 'a folder without __init__.py'}, not ours"
    return _message(
        f"the distribution `{CONTESTED}` {vendor.version}, which is not this project, is installed"
        f" in {_site(vendor)}.",
        f"It is the model vendor's engine and owns the same import package as `{CORE}`: {effect}.",
        [_pip("uninstall", "-y", CONTESTED), _reinstall()],
        "To keep both, give each its own virtual environment.",
    )


def _installation_problem() -> str | None:
    """The message about a missing, shadowed or damaged `deepinfer-core`; None if it is whole."""
    if _distribution(CORE) is None:
        return _message(
            f"`{CORE}` is not installed in this environment ({sys.prefix}).",
            "Backends are found through its entry points.",
            [_install()],
        )
    for package, folders in (
        (CONTESTED, [HERE]),
        ("deepinfer_reference", [HERE, HERE / "backends" / "reference"]),
        ("deepinfer_null", [HERE, HERE / "backends" / "null"]),
    ):
        origin = _origin(package)
        if origin in [folder / package / "__init__.py" for folder in folders]:
            continue
        found = origin or "no such package, or a folder without __init__.py"
        return _message(
            f"`import {package}` does not find the package that belongs to {HERE}.",
            f"It finds: {found}. Another package of that name lies in front of ours, ours was"
            " removed, or a checkout is run in an environment that holds another copy.",
            [_reinstall()],
        )
    damaged = _damaged_files()
    if damaged:
        return _message(
            f"{len(damaged)} installed files of `{CORE}` are missing or were overwritten, the first"
            f" is {damaged[0]}.",
            f"Installing or removing the vendor's distribution `{CONTESTED}` does that.",
            [_reinstall()],
        )
    return None


def _launch(command: Callable[[], int | None]) -> int:
    """Check, then run `command`; a DeepInferError ends as a message and its own exit status.

    So do an interrupt, a reader of stdout that has gone, and an output that cannot be written.
    """
    # An installed vendor extension of torch (entry-point group `torch.backends`) is imported by
    # `import torch` itself and makes that fail where the vendor's runtime is absent. Backends
    # import their own extension when they are chosen, so torch need not.
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    # OpenMP threads that wait spin by default; on a machine that is shared they starve each other,
    # which makes the many small operators of a CPU run ten times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    _prepare_streams()
    try:
        with _plain_warnings():
            return _checked(command)
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT_CODE
    except BrokenPipeError:  # the reader (`| head`) has gone
        _discard_output()
        return BROKEN_PIPE_EXIT_CODE
    except OSError as error:
        if error.errno not in OUTPUT_ERRORS or error.filename is not None:
            return _crashed(error)
        _discard_output()
        _say(f"error: the output cannot be written: {error.strerror}")
        return OUTPUT_EXIT_CODE
    except Exception as error:
        return _crashed(error)


def _crashed(error: Exception) -> int:
    """A defect of ours: Python's own trace of it, or one JSON object; the exit status."""
    if not in_json():
        raise error
    trace = "".join(traceback.format_exception(error))
    said = json_line(f"{type(error).__name__}: {error}", "critical", exception=trace)
    sys.stderr.write(f"{said}\n")
    return CRASHED_EXIT_CODE


def _checked(command: Callable[[], int | None]) -> int:
    """`command` if the environment is sound; DeepInferError as a message and its exit status."""
    problem = environment_problem() or _directory_problem()
    if problem is not None:
        _say(problem)
        return ENVIRONMENT_EXIT_CODE
    try:
        from deepinfer.errors import DeepInferError
    except ModuleNotFoundError as error:
        return _missing_dependency(error)
    try:
        return command() or 0
    except DeepInferError as error:
        _say(f"error: {printable(str(error))}")
        return error.exit_code
    except ModuleNotFoundError as error:
        return _missing_dependency(error)


def _directory_problem() -> str | None:
    """The message about a working directory that was removed: numeric libraries fail in it."""
    try:
        os.getcwd()
    except OSError as error:
        return f"error: the working directory cannot be used: {error.strerror}; change to another"
    return None


def _prepare_streams() -> None:
    """Standard streams that can be used: closed ones are empty, no character fails on stdout."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115 - open until the end
            setattr(sys, name, stream)
    if isinstance(sys.stdout, io.TextIOWrapper):  # as Python does for stderr
        sys.stdout.reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    """Let what is left for stdout go nowhere: Python flushes it at exit and would complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def in_json() -> bool:
    """Is every line on stderr a JSON object, as those of the logs are (DEEPINFER_LOG_FORMAT)?"""
    return os.environ.get("DEEPINFER_LOG_FORMAT") == "json"


def _say(text: str) -> None:
    """An error on stderr: `error: ...`, or one JSON object."""
    line = json_line(text.removeprefix("error: "), "error") if in_json() else text
    sys.stderr.write(f"{line}\n")


def json_line(
    message: str,
    level: str,
    *,
    logger: str = "deepinfer.cli",
    seconds: float | None = None,
    **fields: str,
) -> str:
    """One line of a log as a JSON object: time (UTC, ISO 8601), level, logger, message, `fields`.

    seconds: when it was said, since the epoch; None is now. Logs, notes and errors all have this
    form; it lies here because nothing of the package may be imported before the check.
    """
    moment = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    time = moment.isoformat(timespec="milliseconds")
    record = {"time": time, "level": level, "logger": logger, "message": message, **fields}
    return json.dumps(record, ensure_ascii=False)


def printable(text: str) -> str:
    """`text` with other control characters than line breaks escaped: it may quote a file."""
    return "".join(
        character
        if character.isprintable() or character in "\n\t"
        else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Show our own warnings as `warning: text`, without the line of source that gave them."""
    usual = warnings.formatwarning

    def plain(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        line: str | None = None,
    ) -> str:
        if not Path(filename).is_relative_to(HERE / CONTESTED):
            text = usual(message, category, filename, lineno, line)
            return json_line(text.strip(), "warning") + "\n" if in_json() else text
        text = printable(str(message))
        return (json_line(text, "warning") if in_json() else f"warning: {text}") + "\n"

    warnings.formatwarning = plain
    try:
        yield
    finally:
        warnings.formatwarning = usual


def _missing_dependency(error: ModuleNotFoundError) -> int:
    """One line for a declared dependency that is absent; anything else is a bug: re-raised."""
    core = _distribution(CORE)
    for requirement in (core.requires if core else None) or []:
        name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]  # every one imports as it is named
        if "extra ==" not in requirement and error.name and error.name.split(".")[0] == name:
            _say(
                f"error: the required package `{name}` is not installed: run ./build.sh in a"
                f" checkout, or {_pip('install', requirement.strip())}"
            )
            return ENVIRONMENT_EXIT_CODE
    raise error


def _distribution(name: str) -> metadata.Distribution | None:
    """The installed distribution of exactly this name, or None."""
    return next(iter(metadata.distributions(name=name)), None)


def _site(distribution: metadata.Distribution) -> Path:
    """The folder that a distribution is installed in."""
    return Path(str(distribution.locate_file(""))).resolve()


def _origin(package: str) -> Path | None:
    """The `__init__.py` that `import package` would execute, without executing it."""
    spec = importlib.util.find_spec(package)
    return Path(spec.origin).resolve() if spec is not None and spec.origin else None


def _damaged_files() -> list[str]:
    """Files that `deepinfer-core` installed beside this module, now gone or changed in size.

    Empty for a checkout or an editable installation, whose files are not copied anywhere.
    """
    core = _distribution(CORE)
    if core is None or _site(core) != HERE:
        return []
    damaged = []
    for file in core.files or []:
        if file.parts[0] != CONTESTED or file.size is None:
            continue
        path = Path(str(file.locate()))
        if not path.is_file() or path.stat().st_size != file.size:
            damaged.append(str(file))
    return damaged


def _install() -> str:
    """The command that installs us where we are not installed, dependencies included."""
    if (HERE / "build.sh").is_file():
        return shlex.quote(str(HERE / "build.sh"))
    return _pip("install", "PATH_OF_OUR_WHEEL")


def _reinstall() -> str:
    """The command that puts our files back, from where they came."""
    options = ("install", "--force-reinstall", "--no-deps")
    if (HERE / "pyproject.toml").is_file():
        return _pip(*options, "-e", str(HERE))
    core = _distribution(CORE)
    direct_url = core.read_text("direct_url.json") if core else None
    if direct_url:
        origin = json.loads(direct_url)
        url = urlparse(origin["url"])
        if url.scheme == "file":
            editable = ["-e"] if origin.get("dir_info", {}).get("editable") else []
            return _pip(*options, *editable, unquote(url.path))
    return _pip(*options, "--no-index", "--find-links", "FOLDER_WITH_OUR_WHEELS", CORE)


def _pip(*arguments: str) -> str:
    """A pip command line for this very interpreter, quoted for a shell."""
    return shlex.join([sys.executable or "python", "-m", "pip", *arguments])


def _message(found: str, why: str, commands: Sequence[str], after: str = "") -> str:
    lines = [f"error: {found}", why, "To mend it:", *(f"    {command}" for command in commands)]
    return "\n".join([*lines, after] if after else lines)


if __name__ == "__main__":
    # build.sh asks for the vendor check alone before it installs anything.
    problem = vendor_problem() if sys.argv[1:] == ["--vendor"] else environment_problem()
    if problem is not None:
        print(problem, file=sys.stderr)
        raise SystemExit(ENVIRONMENT_EXIT_CODE)
