"""Tokenizers whose ids come from a table of subwords, as Marian's vocabularies do."""

import functools
import os
import pathlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_text
from sentencepiece import sentencepiece_model_pb2

from tf_transformer.tokenizers.sentencepiece import (
    FileTokenizer,
    SentencePieceTokenizer,
    graph_tokenizer,
    library_of,
    naming,
)

_TAG = r">>.*?<<"
TABLE = ".table"  # the suffix of its file


class VocabularyTokenizer(SentencePieceTokenizer):
    """A tokenizer in which one SentencePiece model splits, and a table of subwords gives ids.

    A subword that is not in the table is unknown. A tag such as `>>deu<<` at the beginning of a
    text tells a model the language to translate to. Where the table has tags that the splitter must
    not see, a tag is one token, perhaps an unknown one, and only the rest of the text is split. The
    table is a SentencePiece model too, of which only the ids and the decoder are used.

    Args:
        model: The table, as `vocabulary_model` makes it.
        splitter: The SentencePiece model that splits texts.

    Attributes:
        tags: The tags that the splitter must not see.

    Example:
        >>> from tf_transformer.tokenizers.vocabulary import vocabulary_model
        >>> special = {"pad": "<pad>", "unk": "<unk>", "bos": "<s>", "eos": "</s>"}
        >>> subwords = sorted(tokenizer.subwords(range(tokenizer.vocab_size)))
        >>> table = vocabulary_model(subwords, tokenizer.splitter, special)
        >>> other = tt.VocabularyTokenizer(table, tokenizer.splitter)
        >>> other.decode(other.encode(["Guten Morgen!"]))
        ['Guten Morgen!']
    """

    def __init__(self, model: bytes, splitter: bytes) -> None:
        super().__init__(model)
        self.table, self.splitter = model, splitter
        self.model = model + splitter  # which together identify the tokenizer
        tags = sorted(tags_in(self.subwords(range(self.vocab_size))), key=self._library.piece_to_id)
        # The splitter's own control symbols stand for no text, so that it never reads them.
        libraries = self._library, library_of(splitter)
        controls, own = (each.is_control(each.piece_to_id(tags)) for each in libraries)
        self.tags = [tag for tag, c, o in zip(tags, controls, own, strict=True) if c and not o]
        self._symbols = [tag for tag in tags if tag not in self.tags]  # the splitter reads them

    def __reduce__(self) -> tuple[type, tuple[bytes, ...]]:
        return type(self), (self.table, self.splitter)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "VocabularyTokenizer":
        """Read the two files that `save` wrote."""
        path = pathlib.Path(path)
        with naming(path):
            return cls(path.with_suffix(TABLE).read_bytes(), path.read_bytes())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the splitter as a `.model` file, and the table as a `.table` file beside it."""
        pathlib.Path(path).write_bytes(self.splitter)
        pathlib.Path(path).with_suffix(TABLE).write_bytes(self.table)

    encode = FileTokenizer.encode  # the graph alone knows how tags are cut off

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Convert texts, string `(B,)`, to int32 ids `(B, None)` without begin and end."""
        if not self.tags:
            return self._ids_of(self.graph_resource.splitter.tokenize(texts))
        begins = tf.strings.regex_full_match(texts, f"(?s){_TAG}.*")
        tags = tf.where(begins, tf.strings.regex_replace(texts, f"(?s)^({_TAG}).*$", r"\1"), "")
        tag_ids = self._ids_of(tags)
        symbol_ids = self._library.piece_to_id(self._symbols)
        is_tag = begins & ~tf.reduce_any(tag_ids[:, None] == symbol_ids, axis=1)
        start = tf.where(is_tag, tf.strings.length(tags), 0)
        rest = tf.strings.substr(texts, start, tf.strings.length(texts) - start)
        tag_ids = tf.ragged.boolean_mask(tag_ids[:, None], is_tag[:, None])
        return tf.concat([tag_ids, self._ids_of(self.graph_resource.splitter.tokenize(rest))], 1)

    def _ids_of(self, subwords: Any) -> Any:
        return self.graph_resource.string_to_id(subwords)

    @functools.cached_property
    def user_symbols(self) -> list[str]:
        """The texts that are one subword wherever they occur, and tags at the beginning."""
        return [*self.tags, *super().user_symbols]

    @functools.cached_property
    def graph_resource(self) -> tensorflow_text.SentencepieceTokenizer:
        """TensorFlow Text's tokenizer of the table, with that of the splitter as an attribute."""
        graph = graph_tokenizer(self.table)
        graph.splitter = graph_tokenizer(self.splitter, tf.string)
        return graph


def tags_in(subwords: Iterable[str]) -> set[str]:
    """Return the subwords that have the form of a tag, such as `>>deu<<`."""
    return {subword for subword in subwords if re.fullmatch(_TAG, subword)}


def vocabulary_model(
    subwords: Sequence[str], splitter: bytes, special: Mapping[str, str], tags: Collection[str] = ()
) -> bytes:
    """Return the table of a `VocabularyTokenizer` as a serialised SentencePiece model.

    Args:
        subwords: The subwords, in the order of their ids.
        splitter: The SentencePiece model that splits texts, or one like it that joins subwords.
        special: The subwords `pad`, `unk`, `bos` and `eos`. They, control symbols of the splitter,
            and `tags` become no text. Sources of OpenNMT-tf end with padding, which is not read.
        tags: Those subwords of the form `>>deu<<` that are cut off before a text is split, as
            models of OPUS-MT need it. To the splitter, others are symbols or characters.
    """
    proto = sentencepiece_model_pb2.ModelProto.FromString(splitter)
    spec, kinds = proto.trainer_spec, sentencepiece_model_pb2.ModelProto.SentencePiece
    of_bytes = {piece.piece for piece in proto.pieces if piece.type == kinds.BYTE}
    spec.byte_fallback = bool(of_bytes) and of_bytes <= set(subwords)  # all of them or none
    kept = [kinds.CONTROL, kinds.USER_DEFINED, *([kinds.BYTE] if spec.byte_fallback else [])]
    kind_of = {piece.piece: piece.type for piece in proto.pieces if piece.type in kept}
    kind_of |= dict.fromkeys((*special.values(), *tags), kinds.CONTROL)
    kind_of[special["unk"]] = kinds.UNKNOWN
    del proto.pieces[:]
    for subword in subwords:
        proto.pieces.add(piece=subword, score=0.0, type=kind_of.get(subword, kinds.NORMAL))
    spec.vocab_size = len(proto.pieces)
    for name, subword in special.items():
        setattr(spec, f"{name}_piece", subword)
    spec.unk_surface = ""
    return proto.SerializeToString(deterministic=True)
