"""Hub ids: a directory wins, nothing is imported early, every failure says what to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors

from deepinfer.checkpoint import Checkpoint
from deepinfer.checkpoint.hub import resolve_directory
from deepinfer.errors import CheckpointError

ID = "owner/model"


class Hub:
    """Stands in for snapshot_download: records its calls, returns `result` or raises it.

    answer: what the Hub says first, when it is asked whether it is there; an exception is raised.
    """

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.result: object = errors.LocalEntryNotFoundError("no")
        self.answer: object = None
        self.patience: list[float] = []

    def repo_info(self, repository: str, *, revision: str | None, timeout: float) -> object:
        self.patience.append(timeout)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def __call__(self, repository: str, **options: Any) -> str:
        self.calls.append({"repository": repository, **options})
        if isinstance(self.result, Exception):
            raise self.result
        return str(self.result)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    """A Hub that is never reached over a network."""
    stand_in = Hub()
    monkeypatch.setattr(huggingface_hub, "snapshot_download", stand_in)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda token=None: stand_in)
    return stand_in


def test_options_reach_the_download(hub: Hub, tiny_checkpoint: Path) -> None:
    hub.result = tiny_checkpoint
    with Checkpoint.open(ID, revision="v1", token="secret", offline=True) as checkpoint:
        assert checkpoint.directory == tiny_checkpoint
    (call,) = hub.calls
    assert (call["repository"], call["revision"], call["token"]) == (ID, "v1", "secret")
    assert call["local_files_only"] is True
    assert "*.safetensors" in call["allow_patterns"]
    assert "*.json" in call["allow_patterns"]


def test_an_existing_directory_wins(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ID).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve_directory(ID) == Path(ID)
    assert hub.calls == []


RESPONSE: Any = SimpleNamespace(headers={}, request=None)


@pytest.mark.parametrize(
    ("error", "offline", "advice"),
    [
        (errors.LocalEntryNotFoundError("no"), False, "cannot be reached"),
        (errors.LocalEntryNotFoundError("no"), True, "offline mode is on"),
        (errors.RepositoryNotFoundError("no", response=RESPONSE), False, "no such repository"),
        (errors.GatedRepoError("no", response=RESPONSE), False, "accept its terms"),
        (errors.RevisionNotFoundError("no", response=RESPONSE), False, "no such revision"),
        (errors.HFValidationError("bad name"), False, "bad name"),
        (OSError("disk full"), False, "disk full; run the command again to resume"),
    ],
)
def test_failures_say_what_to_do(hub: Hub, error: Exception, offline: bool, advice: str) -> None:
    hub.result = error
    with pytest.raises(CheckpointError, match=advice) as caught:
        resolve_directory(ID, offline=offline)
    assert ID in str(caught.value)
    assert len(hub.calls) == 1


@pytest.mark.parametrize(
    ("answer", "local_only"),
    [
        (None, False),
        (errors.RepositoryNotFoundError("no", response=RESPONSE), False),
        (errors.HFValidationError("bad name"), False),
        (TimeoutError("silence"), True),
        (ConnectionRefusedError("nobody"), True),
    ],
)
def test_a_hub_that_does_not_answer_is_not_waited_for(
    hub: Hub, tiny_checkpoint: Path, answer: object, local_only: bool
) -> None:
    hub.answer, hub.result = answer, tiny_checkpoint
    assert resolve_directory(ID, offline=False) == tiny_checkpoint
    assert hub.calls[0]["local_files_only"] is local_only
    assert 0 < hub.patience[0] <= 60


def test_offline_mode_asks_no_hub(hub: Hub, tiny_checkpoint: Path) -> None:
    hub.result = tiny_checkpoint
    assert resolve_directory(ID, offline=True) == tiny_checkpoint
    assert hub.patience == []


@pytest.mark.parametrize("text", ["x" * 5000, "owner/" + "x" * 5000, "/" + "x/" * 3000])
def test_a_path_too_long_for_the_system(hub: Hub, text: str) -> None:
    with pytest.raises(CheckpointError, match="cannot be looked at: File name too long") as caught:
        resolve_directory(text)
    assert len(str(caught.value)) < 500
    assert hub.calls == []


def test_home_of_a_user_that_does_not_exist(hub: Hub) -> None:
    with pytest.raises(CheckpointError, match="no such directory, and not a Hub id"):
        resolve_directory("~no-such-user/x")


@pytest.mark.parametrize("text", ["no-such-directory", "/no/such/dir", "../x/y", "a/b/c", ""])
def test_neither_directory_nor_hub_id(hub: Hub, text: str) -> None:
    with pytest.raises(CheckpointError, match="no such directory, and not a Hub id"):
        resolve_directory(text)
    assert hub.calls == []


def test_a_file_is_not_a_checkpoint(tiny_checkpoint: Path) -> None:
    with pytest.raises(CheckpointError, match="is a file; give the directory"):
        resolve_directory(tiny_checkpoint / "config.json")


def test_without_huggingface_hub_a_directory_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(CheckpointError, match="need the package huggingface_hub"):
        resolve_directory(ID)


@pytest.mark.slow
def test_importing_the_package_imports_no_hub() -> None:
    script = (
        "import sys, deepinfer.checkpoint\n"
        "sys.exit(any(name in sys.modules for name in ('huggingface_hub', 'rich', 'safetensors')))"
    )
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", script], cwd=root, check=False).returncode == 0
