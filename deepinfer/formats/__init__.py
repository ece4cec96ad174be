"""Byte formats of weights, activations and caches: encode, decode, addresses, nothing else.

`e4m3`, `e2m1` and `ue8m0` convert single codes; `quantise` combines them into the block schemes;
`weights` and `entries` apply those to what checkpoints and caches store. Stored bytes are uint8.
"""

from deepinfer.formats import e2m1, e4m3, ue8m0
from deepinfer.formats.entries import (
    INDEX,
    INDEX_BF16,
    MAIN,
    MAIN_BF16,
    WINDOW,
    EntryFormat,
    Offsets,
    PlainFormat,
)
from deepinfer.formats.quantise import Quantised, Scheme, dequantise, quantise, round_trip
from deepinfer.formats.weights import fp4_weight, fp8_rows, fp8_weight

__all__ = [
    "INDEX",
    "INDEX_BF16",
    "MAIN",
    "MAIN_BF16",
    "WINDOW",
    "EntryFormat",
    "Offsets",
    "PlainFormat",
    "Quantised",
    "Scheme",
    "dequantise",
    "e2m1",
    "e4m3",
    "fp4_weight",
    "fp8_rows",
    "fp8_weight",
    "quantise",
    "round_trip",
    "ue8m0",
]
