"""Tokenizers: text to token ids and back, inside the TensorFlow graph."""

from tf_transformer.tokenizers.contract import GraphTokenizer, require_tokenizer
from tf_transformer.tokenizers.sentencepiece import SentencePieceTokenizer, TokenizerError

__all__ = ["GraphTokenizer", "SentencePieceTokenizer", "TokenizerError", "require_tokenizer"]
