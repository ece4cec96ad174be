"""The byte-level alphabet: how vocabulary strings of a byte-level BPE spell bytes.

Each byte is one printable character. Bytes that are printable in Latin-1 are their own character;
the others have the characters from U+0100 on, in the order of the bytes.
"""

from __future__ import annotations

from typing import Final


def _alphabet() -> dict[str, int]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet |= {chr(0x100 + i): byte for i, byte in enumerate(others)}
    return alphabet


BYTE_OF: Final = _alphabet()


def token_to_bytes(token: str) -> bytes:
    """The bytes that a vocabulary string spells.

    A string with a character outside the alphabet, as only added tokens have, is encoded as UTF-8.
    """
    values = [BYTE_OF.get(character) for character in token]
    known = [value for value in values if value is not None]
    return bytes(known) if len(known) == len(values) else token.encode("utf-8")
