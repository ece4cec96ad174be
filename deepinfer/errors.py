"""The one error family of DeepInfer.

Every message says what was asked, what is allowed and what to do. Each class carries the exit
code that the command line ends with, so that a script can tell a wrong flag from a wrong file.
"""

from __future__ import annotations


class DeepInferError(Exception):
    """Base of every error raised on purpose. `exit_code` is the command's exit status."""

    exit_code = 1


class UsageError(DeepInferError):
    """The call itself is wrong: an unknown flag value, contradictory options, a bad argument."""

    exit_code = 2


class NotBuiltYetError(UsageError):
    """The feature that was asked for is part of the design and has not been built."""


class RequestError(DeepInferError):
    """One request is wrong (an empty prompt, a foreign id); others are unaffected."""


class PromptTooLongError(RequestError):
    """A prompt that can never fit; the message has the numbers."""


class BackendError(DeepInferError):
    """Base of the errors about accelerator backends."""

    exit_code = 3


class BackendUnavailableError(BackendError):
    """The named backend is not installed or not usable on this machine."""


class BackendContractError(BackendError):
    """A backend breaks the contract: wrong version, bad hook, wrong answer, a `yes` that raised."""


class UnsupportedOperatorError(BackendError):
    """An operator call that nothing can run: operator, argument, value and what is supported."""


class DeviceMemoryError(BackendError):
    """What must be kept on the device does not fit into its memory; the message has the numbers."""


class CheckpointError(DeepInferError):
    """Base of the errors about a checkpoint directory."""

    exit_code = 4


class ConfigError(CheckpointError):
    """config.json breaks a rule; the message names key, value and rule."""


class CheckpointIndexError(CheckpointError):
    """The shard index is unreadable or disagrees with the shards."""


class MissingShardError(CheckpointError):
    """A shard file named by the index does not exist."""


class TruncatedShardError(CheckpointError):
    """A shard file is shorter or longer than its header says."""


class MissingTensorError(CheckpointError):
    """A tensor that the configuration requires is in no shard."""


class UnexpectedTensorError(CheckpointError):
    """A tensor that belongs to no component of the model."""


class MissingScaleError(CheckpointError):
    """A quantised weight without its scale, or a scale without its weight."""


class TensorMismatchError(CheckpointError):
    """A tensor's dtype or shape is not what the configuration requires."""


class TokenizerError(CheckpointError):
    """The tokenizer files are missing, unreadable or do not fit the configuration."""
