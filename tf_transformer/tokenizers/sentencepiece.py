"""SentencePiece, trained by its own library and run inside the graph by TensorFlow Text."""

import contextlib
import functools
import hashlib
import io
import os
import pathlib
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, Self

import sentencepiece
import tensorflow as tf
import tensorflow_text
from sentencepiece import sentencepiece_model_pb2
from tensorflow_text.python.ops.sentencepiece_tokenizer import gen_sentencepiece_tokenizer

from tf_transformer.errors import ConfigError, InputError
from tf_transformer.files import naming as naming_files
from tf_transformer.normalization import nfc_rules
from tf_transformer.tokenizers.marks import MarkIds

# White space of any kind becomes a space, and SentencePiece's own sign for a space a low line.
_SPACES = "".join(map(chr, (*range(0x9, 0xE), 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028,
                            0x2029, 0x202F, 0x205F, 0x3000)))  # fmt: skip
_ALWAYS = {**dict.fromkeys(_SPACES, " "), "▁": "_"}

_OWN_SYMBOL = re.compile(r"</?s>|<pad>|<unk>|<0x[0-9A-F]{2}>")

# SentencePiece keeps its training sentences in memory; a sample of this size is representative.
MAX_SENTENCES = 4_000_000


class TokenizerError(InputError):
    """A SentencePiece model that cannot be used."""


@contextlib.contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Let a `TokenizerError` of the block name the file."""
    try:
        yield
    except TokenizerError as error:
        raise TokenizerError(f"{path}: {error}") from None


class VocabularySizeError(ConfigError):
    """A vocabulary size that is too small for the characters of the training sentences.

    Attributes:
        smallest: The smallest size that the sentences allow.
    """

    smallest: int


class FileTokenizer:
    """A tokenizer that its `model`, the content of a file, describes completely."""

    def __reduce__(self) -> tuple[type, tuple[bytes, ...]]:
        """Pickle the model alone, since TensorFlow's resources belong to a process."""
        return type(self), (self.model,)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote; raise a `TokenizerError` that names the file if it is invalid."""
        with naming(path):
            return cls(pathlib.Path(path).read_bytes())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model: a `.model` file of SentencePiece, or the JSON of `wordpiece_model`."""
        pathlib.Path(path).write_bytes(self.model)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of texts, without begin and end ids, as the graph finds them."""
        require_list(texts)
        return self.tokenize(tf.constant(list(texts), tf.string)).to_list()


class SentencePieceTokenizer(FileTokenizer):
    """A tokenizer that converts text to subword ids and back (Kudo & Richardson 2018).

    With byte fallback, no visible character is lost: those outside the vocabulary become bytes.
    Two engines read the same model: the SentencePiece library in `encode`, `decode` and `subwords`,
    and TensorFlow Text, inside the graph, in `tokenize`, `detokenize` and `id_to_string`.

    Args:
        model: A serialised SentencePiece model, which also defines the ids of special tokens.

    Attributes:
        vocab_size: Number of subwords, V, without the unused ones at the end.
        splitter: The SentencePiece model that splits texts: here the same as `model`.
        control_ids: The ids of bytes that are control characters, such as a line feed.
        mark_ids: The ids of marks, which stand for pieces of a text, see `MarkIds`.

    Raises:
        TokenizerError: If `model` is not a valid model, or lacks an id that translation needs.

    Example:
        >>> tokenizer = tt.SentencePieceTokenizer.train(["a house", "a mouse"], vocab_size=272)
        >>> ids = tokenizer.encode(["a house"])
        >>> tokenizer.subwords(ids[0])
        ['▁a', '▁', 'h', 'ouse']
        >>> tokenizer.decode(ids)
        ['a house']
    """

    def __init__(self, model: bytes) -> None:
        self.model = self.splitter = model
        self._library = library_of(model)
        self.vocab_size = self._library.vocab_size()
        while self.vocab_size and self._library.is_unused(self.vocab_size - 1):
            self.vocab_size -= 1
        self.pad_id, self.unk_id = self._library.pad_id(), self._library.unk_id()
        self.bos_id, self.eos_id = self._library.bos_id(), self._library.eos_id()
        subwords = self.subwords(range(self.vocab_size))
        self.control_ids = [
            i for i, piece in enumerate(subwords) if re.fullmatch("<0x[01][0-9A-F]>", piece)
        ]
        self.mark_ids = MarkIds.of(subwords)
        if min(self.pad_id, self.bos_id, self.eos_id) < 0:
            raise TokenizerError(
                "the SentencePiece model lacks a padding, begin or end id. Train it with "
                "--pad_id=0 --unk_id=1 --bos_id=2 --eos_id=3, or with SentencePieceTokenizer.train."
            )

    @classmethod
    def train(
        cls,
        sentences: Iterable[str],
        vocab_size: int,
        model_type: str = "bpe",
        character_coverage: float = 0.9995,
        user_symbols: Sequence[str] = (),
        normalization: Literal["nfc", "none"] = "nfc",
    ) -> "SentencePieceTokenizer":
        """Train a tokenizer.

        Args:
            sentences: Training sentences, read once; of both languages for a joint vocabulary. If
                there are more than four million, a fixed random sample of four million is used.
            vocab_size: Number of subwords, including 256 bytes and 4 special ids. The tokenizer has
                fewer if the sentences do not contain that many different subwords.
            model_type: `"bpe"` or `"unigram"`.
            character_coverage: Fraction of the text whose characters have their own subwords; the
                other, rare characters become bytes, also in training.
            user_symbols: Texts that are one subword wherever they occur, such as `"<BT>"`.
            normalization: `"nfc"` composes letters with their accents, and removes soft hyphens and
                zero-width spaces, wherever the tokenizer is used; `"none"` keeps them as they are.

        Raises:
            VocabularySizeError: If the sentences have more characters than `vocab_size` allows.
            ConfigError: If SentencePiece refuses its input, for example sentences without text.
        """
        require_list(sentences)
        require_list(user_symbols)
        if model_type not in ("bpe", "unigram") or normalization not in ("nfc", "none"):
            raise ConfigError(f"one of these is not known: {model_type=}, {normalization=}.")
        if own := [symbol for symbol in user_symbols if _OWN_SYMBOL.fullmatch(symbol)]:
            raise ConfigError(f"{own[0]} is a symbol of SentencePiece itself. Give another tag.")
        failed = []

        def stream() -> Iterator[str]:
            try:
                yield from sentences
            except (InputError, OSError, KeyboardInterrupt) as error:
                failed.append(error)
                raise

        model, ids = io.BytesIO(), {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3}
        with naming_files(tempfile.gettempdir()), tempfile.NamedTemporaryFile("w") as rules:
            rules.writelines(_rules(_ALWAYS | (nfc_rules() if normalization == "nfc" else {})))
            rules.flush()
            try:
                sentencepiece.SentencePieceTrainer.train(
                    sentence_iterator=stream(),
                    input_sentence_size=MAX_SENTENCES,
                    shuffle_input_sentence=True,
                    model_writer=model,
                    vocab_size=vocab_size,
                    hard_vocab_limit=False,
                    model_type=model_type,
                    byte_fallback=True,
                    character_coverage=character_coverage,
                    user_defined_symbols=list(user_symbols),
                    normalization_rule_tsv=rules.name,
                    max_sentence_length=2**20,  # longer lines would be dropped silently
                    num_threads=1,  # so that the same corpus gives the same model
                    minloglevel=2,
                    **ids,
                )
            except RuntimeError as error:
                # The library replaces an error of the iterator with one of its own.
                raise (failed or [_explained(error, vocab_size)])[0] from None
        proto = sentencepiece_model_pb2.ModelProto.FromString(model.getvalue())
        # The model contains the compiled rules; the name of their temporary file always differs.
        proto.normalizer_spec.normalization_rule_tsv = ""
        return cls(proto.SerializeToString(deterministic=True))

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of texts, without begin and end ids."""
        require_list(texts)
        return self._library.encode(list(texts))

    def decode(self, ids: Iterable[Iterable[int]]) -> list[str]:
        """Return the texts of sequences of token ids."""
        # One by one, because the library returns one empty text for an empty list.
        return [self._library.decode(list(map(int, sequence))) for sequence in ids]

    def subwords(self, ids: Iterable[int]) -> list[str]:
        """Return the subwords of token ids."""
        return [self._library.id_to_piece(int(i)) for i in ids]

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Convert texts, string `(B,)`, to int32 ids `(B, None)` without begin and end."""
        return self.graph_resource.tokenize(texts)

    def detokenize(self, ids: tf.RaggedTensor) -> tf.Tensor:
        """Convert int32 ids `(B, None)` without special ids to texts, string `(B,)`."""
        return self.graph_resource.detokenize(ids)

    def id_to_string(self, ids: tf.RaggedTensor) -> tf.RaggedTensor:
        """Convert int32 ids `(B, None)` to subwords, string `(B, None)`.

        The first subword of a word begins with `▁` (U+2581). A byte is spelled like `<0xE2>`,
        and an id that is none of the vocabulary like the unknown one.
        """
        # TensorFlow Text would read beyond its table (2.20).
        is_known = (ids.flat_values >= 0) & (ids.flat_values < self.vocab_size)
        known = ids.with_flat_values(tf.where(is_known, ids.flat_values, self.unk_id))
        return self.graph_resource.id_to_string(known)

    @functools.cached_property
    def user_symbols(self) -> list[str]:
        """The texts that are one subword wherever they occur, such as tags and marks."""
        proto = sentencepiece_model_pb2.ModelProto.FromString(self.splitter)
        return [piece.piece for piece in proto.pieces if piece.type == piece.USER_DEFINED]

    @functools.cached_property
    def graph_resource(self) -> tensorflow_text.SentencepieceTokenizer:
        """TensorFlow Text's tokenizer, which a module must track so that a SavedModel has it."""
        return graph_tokenizer(self.model)


def _rules(replaced: Mapping[str, str]) -> Iterator[str]:
    """Yield replacements as lines of SentencePiece, without those of a text by itself."""
    for pair in replaced.items():
        old, new = (" ".join(f"{ord(character):X}" for character in text) for text in pair)
        if old != new:
            yield f"{old}\t{new}\n"


def library_of(model: bytes) -> sentencepiece.SentencePieceProcessor:
    """Return the library's reader of a model; raise a `TokenizerError` if it is invalid."""
    library = sentencepiece.SentencePieceProcessor()
    try:
        library.LoadFromSerializedProto(model)
    except RuntimeError:
        raise TokenizerError(
            "no SentencePiece model, or a damaged one. Restore it from a copy or train anew."
        ) from None
    return library


def graph_tokenizer(
    model: bytes, out_type: tf.DType = tf.int32
) -> tensorflow_text.SentencepieceTokenizer:
    """Return TensorFlow Text's tokenizer of a model, which makes ids or strings."""
    # Created on first use and outside any function, so that it outlives a trace.
    with tf.init_scope():
        graph = tensorflow_text.SentencepieceTokenizer(model, out_type)
        graph._model_resource = _GraphModel(model)
    return graph


class _GraphModel(tf.saved_model.experimental.TrackableResource):
    """A model held by TensorFlow under a name derived from its content.

    TensorFlow Text's own resource belongs to the operation that created it, and is deleted with
    it, for example by `keras.utils.set_random_seed` (TensorFlow Text 2.21.1). This one lives until
    the process ends, and is shared by all tokenizers of the same model.
    """

    def __init__(self, model: bytes) -> None:
        super().__init__()
        self._content = model
        self._shared_name = f"sentencepiece-{hashlib.sha256(model).hexdigest()}"
        _ = self.resource_handle  # creates it

    def _create_resource(self) -> tf.Tensor:
        return gen_sentencepiece_tokenizer.sentencepiece_op(
            model=self._content, shared_name=self._shared_name
        )


def require_list(texts: Iterable[str]) -> None:
    """Raise if `texts` is one text, whose characters would be taken for texts."""
    if isinstance(texts, str):
        raise TypeError(f"expected a list of texts, received the str {texts[:40]!r}; give [text]")


def _explained(error: RuntimeError, vocab_size: int) -> ConfigError:
    message = str(error).strip()
    # sentencepiece: "Vocabulary size is smaller than required_chars. 262 vs 498. Increase …"
    if found := re.search(r"smaller than required_chars.* vs (\d+)", message):
        explained = VocabularySizeError(
            f"vocab_size={vocab_size} is too small for the characters of this corpus: give "
            f"--vocab-size (vocab_size) of at least {found[1]}."
        )
        explained.smallest = int(found[1])
        return explained
    if "sentences_.empty()" in message or "all_chars_count" in message:
        message = "the sentences have no text."
    return ConfigError(f"no tokenizer of vocab_size={vocab_size} can be trained: {message}")
