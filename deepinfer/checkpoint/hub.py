"""From a directory or a Hub id to a local directory. Only an id imports the Hub's library."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from deepinfer.errors import CheckpointError

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
FILES = ["*.json", "*.safetensors", "tokenizer*", "*.jinja"]
LONGEST_SHOWN = 300  # characters of a path in a message
SKIPPED = ["inference/*", "encoding/*", "*/original/*"]


def resolve_directory(
    path_or_hub_id: str | Path,
    *,
    revision: str | None = None,
    token: str | None = None,
    offline: bool | None = None,
    progress: bool = True,
) -> Path:
    """The local directory of a checkpoint, downloaded if the argument is a Hub id.

    An existing directory wins over a Hub id of the same spelling. revision: branch, tag or commit;
    token: for gated repositories; offline: True uses local copies only, None follows
    HF_HUB_OFFLINE. An interrupted download goes on where it stopped. A Hub that does not answer
    within HF_HUB_ETAG_TIMEOUT seconds (10) counts as not there: a complete local copy is used.

    Errors: CheckpointError saying what to do.
    """
    text = str(path_or_hub_id)
    label = repr(text[:LONGEST_SHOWN])
    path = Path(path_or_hub_id)
    try:
        with suppress(RuntimeError):  # ~name of a user that does not exist
            path = path.expanduser()
        directory, exists = bool(text) and path.is_dir(), bool(text) and path.exists()
    except OSError as error:
        raise CheckpointError(
            f"{label}: cannot be looked at: {error.strerror or error}; "
            "give the directory of a checkpoint or a Hub id"
        ) from error
    if directory:
        return path
    if exists:
        raise CheckpointError(
            f"{path}: is a file; give the directory that holds config.json and the shards"
        )
    if not HUB_ID.fullmatch(text):
        raise CheckpointError(
            f"{label}: no such directory, and not a Hub id of the form owner/name; "
            "give the directory of a checkpoint or a Hub id"
        )
    return _download(text, revision, token, offline, progress)


def _download(
    repository: str, revision: str | None, token: str | None, offline: bool | None, progress: bool
) -> Path:
    try:
        from huggingface_hub import constants, snapshot_download
        from huggingface_hub.utils.tqdm import (
            are_progress_bars_disabled,
            disable_progress_bars,
            enable_progress_bars,
        )
    except ImportError as error:
        raise CheckpointError(
            f"{repository}: no such directory, and Hub ids need the package huggingface_hub, "
            f"which cannot be imported ({error}); install it or give a directory"
        ) from error
    local_only = constants.HF_HUB_OFFLINE if offline is None else offline
    quiet = not progress and not are_progress_bars_disabled()
    if quiet:
        disable_progress_bars()
    try:
        directory = snapshot_download(
            repository,
            revision=revision,
            token=token,
            local_files_only=local_only or not _answers(repository, revision, token),
            allow_patterns=FILES,
            ignore_patterns=SKIPPED,
        )
    except Exception as error:  # the HTTP client has changed from release to release
        raise CheckpointError(_explain(error, repository, revision, local_only)) from error
    finally:
        if quiet:
            enable_progress_bars()
    return Path(directory)


def _answers(repository: str, revision: str | None, token: str | None) -> bool:
    """Whether the Hub answers a question about the repository, even with a refusal.

    The library waits for its first answer without a limit, and a network that drops packets never
    gives one.
    """
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        timeout = float(constants.HF_HUB_ETAG_TIMEOUT)
        HfApi(token=token).repo_info(repository, revision=revision, timeout=timeout)
    except (HfHubHTTPError, HFValidationError):
        return True
    except Exception:  # the HTTP client has changed from release to release
        return False
    return True


def _explain(error: Exception, repository: str, revision: str | None, local_only: bool) -> str:
    """What went wrong with a download and what to do about it."""
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    at = f"{repository} (revision {revision or 'main'})"
    if isinstance(error, GatedRepoError):
        return f"{at}: the repository is gated; accept its terms on the Hub and pass a token"
    if isinstance(error, RepositoryNotFoundError):
        return (
            f"{at}: no such directory here and no such repository on the Hub; check the spelling, "
            "and pass a token if the repository is private"
        )
    if isinstance(error, RevisionNotFoundError):
        return f"{at}: the repository has no such revision; name a branch, a tag or a commit"
    if local_only:
        return (
            f"{at}: offline mode is on and no complete local copy exists; download it once with "
            "offline mode off (HF_HUB_OFFLINE unset) or give a directory"
        )
    if isinstance(error, LocalEntryNotFoundError):
        return (
            f"{at}: the Hub cannot be reached and no complete local copy exists; "
            "check the connection (HF_ENDPOINT names a mirror) or give a directory"
        )
    reason = str(error).strip() or type(error).__name__
    return f"{at}: the download failed: {reason.splitlines()[0]}; run the command again to resume"
