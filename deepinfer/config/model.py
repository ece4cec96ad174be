"""The configuration of a checkpoint: the published nested config.json.

`ModelConfig.from_file` reads it. A broken model rule is a `ConfigError`; a value outside of a
release limit is none (see `limits.py`). Unknown keys give one warning. Source: model specification,
section 1.
"""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from deepinfer.config.fields import Section, shown
from deepinfer.config.rope import YarnConfig
from deepinfer.config.rules import check_text
from deepinfer.config.text import TEXT_ALIASES, TextConfig, read_text
from deepinfer.errors import ConfigError

__all__ = ["ModelConfig", "QuantizationConfig", "TextConfig", "VisionConfig", "YarnConfig"]

LISTED_KEYS: Final = 20  # how many unknown keys the warning names
SUPPORTED_MODEL_TYPES: Final = ("deepseek_v41",)


class UnknownConfigKeyWarning(UserWarning):
    """config.json has keys that DeepInfer does not know and therefore ignores."""


@dataclass(frozen=True)
class VisionConfig:
    """The vision tower (section 1.3).

    num_hidden_layers 0: there is none, and the other keys may be absent, which gives 0.
    """

    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    intermediate_size: int
    patch_size: int
    rope_theta: float
    downsample_ratio: int
    max_image_tokens: int
    min_pixels: int
    max_wh_ratio: float | None

    @property
    def enabled(self) -> bool:
        """Whether the checkpoint has a vision tower."""
        return self.num_hidden_layers > 0

    @property
    def head_dim(self) -> int:
        """The width of an attention head of the tower."""
        return self.hidden_size // self.num_attention_heads


@dataclass(frozen=True)
class QuantizationConfig:
    """How matrices are stored (section 1.4). Values other than `RELEASED` leave release limits."""

    RELEASED: ClassVar[Mapping[str, object]] = {
        "weight_block_size": (32, 32),
        "scale_fmt": "ue8m0",
        "expert_dtype": "fp4",
        "activation_scheme": "dynamic",
    }

    quant_method: str
    weight_block_size: tuple[int, ...]
    scale_fmt: str
    expert_dtype: str
    activation_scheme: str


@dataclass(frozen=True)
class ModelConfig:
    """A whole config.json. unknown_keys: dotted names of the keys that are ignored."""

    architectures: tuple[str, ...]
    model_type: str
    dtype: str
    bos_token_id: int
    eos_token_id: int
    pad_token_id: int
    image_token_id: int | None
    text: TextConfig
    vision: VisionConfig
    quantization: QuantizationConfig | None
    unknown_keys: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: str = "config.json") -> ModelConfig:
        """Read and check a parsed config.json.

        source: the name of the file in messages. Errors: ConfigError with key, value and rule. One
        UnknownConfigKeyWarning names all unknown keys.
        """
        if not isinstance(values, Mapping):
            raise ConfigError(f"{source}: must be a JSON object, not {type(values).__name__}")
        top = Section(values, source, aliases={"dtype": ("torch_dtype",)})
        _check_model_type(top)
        architectures = _read_architectures(top)
        dtype = top.literal("dtype", "bfloat16")
        top.flag("tie_word_embeddings", must=False, default=False)
        top.ignore("transformers_version")
        quantization = _read_quantization(top)
        text_section = top.section("text_config", aliases=TEXT_ALIASES)
        text = read_text(text_section)
        check_text(text, text_section, quantized=quantization is not None)
        vision = _read_vision(top)
        last = text.vocab_size - 1
        config = cls(
            architectures=architectures,
            model_type=SUPPORTED_MODEL_TYPES[0],
            dtype=dtype,
            bos_token_id=_read_token_id(top, text_section, "bos_token_id", last),
            eos_token_id=_read_token_id(top, text_section, "eos_token_id", last),
            pad_token_id=_read_token_id(top, text_section, "pad_token_id", last),
            image_token_id=(
                top.integer("image_token_id", low=0, high=last)
                if vision.enabled
                else top.optional_integer("image_token_id", low=0, high=last)
            ),
            text=text,
            vision=vision,
            quantization=quantization,
            unknown_keys=tuple(top.unknown()),
        )
        if config.unknown_keys:
            names = ", ".join(map(_listed, config.unknown_keys[:LISTED_KEYS]))
            more = len(config.unknown_keys) - LISTED_KEYS
            warnings.warn(
                f"{source}: unknown keys are ignored: {names}"
                + (f", and {more} more" if more > 0 else ""),
                UnknownConfigKeyWarning,
                stacklevel=2,
            )
        return config

    @classmethod
    def from_file(cls, path: str | Path) -> ModelConfig:
        """Read config.json at `path` (the file, or the directory that holds it)."""
        file = Path(path)
        if file.is_dir():
            file = file / "config.json"
        try:
            text = file.read_bytes().decode("utf-8")
        except FileNotFoundError:
            raise ConfigError(
                f"{file}: not found; a checkpoint directory must hold the published config.json"
            ) from None
        except OSError as error:
            raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"{file}: is not UTF-8 (byte {error.start}); config.json must be UTF-8 text"
            ) from error
        try:
            values = json.loads(text, object_pairs_hook=_reject_repeated_keys)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{file}: is not valid JSON: {error}") from error
        return cls.from_dict(values, source=str(file))


def _listed(key: str) -> str:
    """A key for the warning: quoted if it has unusual characters, shortened if it is long."""
    return key if key.isprintable() and len(key) <= 120 else shown(key)


def _reject_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        repeated = sorted(name for name, count in counts.items() if count > 1)
        raise ValueError(f"repeated keys: {', '.join(map(_listed, repeated[:LISTED_KEYS]))}")
    return values


def _check_model_type(top: Section) -> None:
    supported = ", ".join(SUPPORTED_MODEL_TYPES)
    value = top.values.get("model_type")
    top.ignore("model_type")
    if "model_type" not in top.values:
        hint = ""
        if "text_config" not in top.values and "dim" in top.values:
            hint = "; this looks like the flat inference/config.json, use the nested config.json"
        raise ConfigError(
            f"{top.source}: model_type is missing: must be one of the supported model types: "
            f"{supported}{hint}"
        )
    if value not in SUPPORTED_MODEL_TYPES:
        raise ConfigError(
            f"{top.source}: model_type = {shown(value)}: must be one of the supported model types: "
            f"{supported} (exact match)"
        )


def _read_architectures(top: Section) -> tuple[str, ...]:
    rule = 'exactly one entry, "DeepseekV41ForCausalLM"'
    top.ignore("architectures")
    if "architectures" not in top.values:
        raise ConfigError(f"{top.source}: architectures is missing: must be {rule}")
    value = top.values["architectures"]
    if value != ["DeepseekV41ForCausalLM"]:
        raise top.error("architectures", value, rule)
    return tuple(value)


def _read_token_id(top: Section, text: Section, key: str, last: int) -> int:
    """The id of a control token; if `text_config` repeats it, both must agree."""
    nested = text.optional_integer(key, low=0, high=last)
    if nested is not None and key not in top.values:
        top.ignore(key)
        return nested
    value = top.integer(key, low=0, high=last)
    if nested is not None and nested != value:
        raise text.error(key, nested, f"equal to the top level's {key}, which is {value}")
    return value


def _read_quantization(top: Section) -> QuantizationConfig | None:
    section = top.optional_section("quantization_config")
    if section is None:
        return None
    block = section.integers("weight_block_size", low=1)
    if len(block) != 2:
        raise section.error("weight_block_size", list(block), "a list of two integers")
    return QuantizationConfig(
        quant_method=section.literal("quant_method", "fp8"),
        weight_block_size=block,
        scale_fmt=section.text("scale_fmt"),
        expert_dtype=section.text("expert_dtype"),
        activation_scheme=section.text("activation_scheme"),
    )


def _read_vision(top: Section) -> VisionConfig:
    s = top.section("vision_config", ' (of a text-only model: {"num_hidden_layers": 0, ...})')
    s.literal("model_type", "deepseek_v41_vision", default="deepseek_v41_vision")
    s.literal("dtype", "bfloat16", default="bfloat16")
    layers = s.integer("num_hidden_layers", low=0)
    used = layers > 0
    vision = VisionConfig(
        num_hidden_layers=layers,
        hidden_size=s.integer("hidden_size", used=used),
        num_attention_heads=s.integer("num_attention_heads", used=used),
        intermediate_size=s.integer("intermediate_size", used=used),
        patch_size=s.integer("patch_size", used=used),
        rope_theta=s.number("rope_theta", above=0, used=used),
        downsample_ratio=s.integer("downsample_ratio", used=used),
        max_image_tokens=s.integer("max_image_tokens", low=4, used=used),
        min_pixels=s.integer("min_pixels", used=used),
        max_wh_ratio=s.number("max_wh_ratio", low=1) if s.has("max_wh_ratio") else None,
    )
    s.ignore("max_wh_ratio")
    if used:
        heads = vision.num_attention_heads
        if vision.hidden_size % heads or vision.head_dim % 4:
            raise s.error(
                "hidden_size",
                vision.hidden_size,
                f"a multiple of num_attention_heads ({heads}) with a head width divisible by 4",
            )
    return vision
