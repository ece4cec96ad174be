"""Text and token ids: tokenizer, incremental decoding, chat prompts, compressed vocabulary."""

from deepinfer.text.compressed_vocabulary import compressed_token_map
from deepinfer.text.streaming import StreamDecoder
from deepinfer.text.template import encode_chat
from deepinfer.text.tokenizer import Tokenizer

__all__ = ["StreamDecoder", "Tokenizer", "compressed_token_map", "encode_chat"]
