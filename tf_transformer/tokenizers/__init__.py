"""Tokenizers: text to token ids and back, inside the TensorFlow graph."""

from tf_transformer.tokenizers.sentencepiece import SentencePieceTokenizer, TokenizerError

__all__ = ["SentencePieceTokenizer", "TokenizerError"]
