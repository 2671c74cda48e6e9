"""SentencePiece: trained by its own library, run inside the graph by TensorFlow Text."""

import hashlib
import io
import pathlib
import tempfile

import sentencepiece
import tensorflow as tf
import tensorflow_text
from sentencepiece import sentencepiece_model_pb2
from tensorflow_text.python.ops.sentencepiece_tokenizer import gen_sentencepiece_tokenizer

from tf_transformer.config import ConfigError, InputError

PAD_ID, UNK_ID, BOS_ID, EOS_ID = 0, 1, 2, 3

# All normalisation there is: white space of any kind is a space. SentencePiece's default, NFKC,
# would turn m² into m2 and … into three dots.
_WHITE_SPACE = (*range(0x9, 0xE), 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029,
                0x202F, 0x205F, 0x3000)  # fmt: skip
_NORMALISATION = "".join(f"{character:X}\t20\n" for character in _WHITE_SPACE)

# The library holds the sentences it learns from; a sample of so many says what the rest would.
_MOST_SENTENCES = 4_000_000


class TokenizerError(InputError):
    """A SentencePiece model that cannot be used."""


class SentencePieceTokenizer:
    """Text to ids and back (Kudo & Richardson 2018).

    With byte fallback no character is ever lost: what the vocabulary does not hold becomes bytes.
    Two engines read the same model: the library for whole corpora, TensorFlow Text in the graph.

    Args:
        model: bytes, a serialised SentencePiece model.

    Attributes:
        vocab_size, pad_id, unk_id, bos_id, eos_id: int, read from the model.

    Raises:
        TokenizerError: the bytes are no such model, or it lacks an id that translation needs.
    """

    def __init__(self, model):
        self.model = model
        self._library = sentencepiece.SentencePieceProcessor()
        try:
            self._library.LoadFromSerializedProto(model)
        except RuntimeError:
            raise TokenizerError(
                "no SentencePiece model, or a damaged one. Restore it from a copy or train anew."
            ) from None
        self._graph = None
        self.vocab_size = self._library.vocab_size()
        self.pad_id = self._library.pad_id()
        self.unk_id = self._library.unk_id()
        self.bos_id = self._library.bos_id()
        self.eos_id = self._library.eos_id()
        if min(self.pad_id, self.bos_id, self.eos_id) < 0:
            raise TokenizerError(
                "the SentencePiece model lacks a padding, begin or end id. Train it with "
                "--pad_id=0 --unk_id=1 --bos_id=2 --eos_id=3, or with SentencePieceTokenizer.train."
            )

    @classmethod
    def train(cls, sentences, vocab_size, model_type="bpe"):
        """Trains a tokenizer.

        Args:
            sentences: iterable of str, read once and not kept; both sides of the corpus for a
                joint vocabulary. Of more than four million it learns from a random sample of four
                million, the same one each time.
            vocab_size: int, pieces, the 256 bytes and 4 special ids included.
            model_type: `"bpe"` or `"unigram"`.

        Returns:
            `SentencePieceTokenizer`.

        Raises:
            ConfigError: the sentences do not hold that many different pieces.
        """
        failed = []

        def given():
            try:
                yield from sentences
            except InputError as error:
                failed.append(error)
                raise

        model = io.BytesIO()
        with tempfile.NamedTemporaryFile("w", suffix=".tsv") as rules:
            rules.write(_NORMALISATION)
            rules.flush()
            try:
                sentencepiece.SentencePieceTrainer.train(
                    sentence_iterator=given(),
                    input_sentence_size=_MOST_SENTENCES,
                    shuffle_input_sentence=True,
                    model_writer=model,
                    vocab_size=vocab_size,
                    model_type=model_type,
                    byte_fallback=True,
                    character_coverage=1.0,
                    normalization_rule_tsv=rules.name,
                    # A line of any length is text to learn from, never silently left out.
                    max_sentence_length=2**20,
                    # One thread and a fixed order: the same corpus gives the same model.
                    num_threads=1,
                    pad_id=PAD_ID,
                    unk_id=UNK_ID,
                    bos_id=BOS_ID,
                    eos_id=EOS_ID,
                    minloglevel=2,
                )
            except RuntimeError as error:
                # The library makes an error of its own of any in the sentences.
                raise (failed or [ConfigError(_explain(error, vocab_size))])[0] from None
        proto = sentencepiece_model_pb2.ModelProto.FromString(model.getvalue())
        # The rules are compiled in; their file is gone, and its name differs each time.
        proto.normalizer_spec.normalization_rule_tsv = ""
        return cls(proto.SerializeToString(deterministic=True))

    @classmethod
    def load(cls, path):
        """Reads a `.model` file.

        Raises:
            OSError: it cannot be read.
            TokenizerError: it is no SentencePiece model, or lacks an id; the file is named.
        """
        try:
            return cls(pathlib.Path(path).read_bytes())
        except TokenizerError as error:
            raise TokenizerError(f"{path}: {error}") from None

    def save(self, path):
        """Writes the model, as a `.model` file that any SentencePiece reads."""
        pathlib.Path(path).write_bytes(self.model)

    def encode(self, texts):
        """Ids of texts, with the library.

        Args:
            texts: list of str.

        Returns:
            list of lists of int, without begin and end ids.
        """
        return self._library.encode(list(texts))

    def decode(self, ids):
        """Texts of ids, with the library.

        Args:
            ids: list of lists of int.

        Returns:
            list of str.
        """
        # Row by row: of no rows at all the library makes one empty text.
        return [self._library.decode(list(map(int, row))) for row in ids]

    def pieces(self, ids):
        """The pieces, as str, of a list of ids."""
        return [self._library.id_to_piece(int(i)) for i in ids]

    def tokenize(self, texts):
        """Ids of texts, in the graph.

        Args:
            texts: string tensor `(B,)`.

        Returns:
            int32 `tf.RaggedTensor` `(B, None)`, without begin and end ids.
        """
        return self.graph_resource.tokenize(texts)

    def detokenize(self, ids):
        """Texts of ids, in the graph.

        Args:
            ids: int32 `tf.RaggedTensor` `(B, None)`, without padding, begin and end ids.

        Returns:
            string tensor `(B,)`.
        """
        return self.graph_resource.detokenize(ids)

    @property
    def graph_resource(self):
        """TensorFlow Text's tokenizer, which a module that is saved must hold."""
        if self._graph is None:
            # Made on first use and outside any function, so that its resource outlives a trace.
            with tf.init_scope():
                self._graph = tensorflow_text.SentencepieceTokenizer(self.model)
                self._graph._model_resource = _GraphModel(self.model)
        return self._graph


class _GraphModel(tf.saved_model.experimental.TrackableResource):
    """A model in TensorFlow's memory under a name that says what it is.

    That of TensorFlow Text belongs to the operation that made it, and is gone when TensorFlow
    forgets its operations, as it does in `keras.utils.set_random_seed` (TensorFlow Text 2.21.1).
    This one stays until the process ends, once for all tokenizers of the same model.
    """

    def __init__(self, model):
        super().__init__()
        self._content = model
        self._shared_name = f"sentencepiece-{hashlib.sha256(model).hexdigest()}"
        _ = self.resource_handle  # makes it

    def _create_resource(self):
        return gen_sentencepiece_tokenizer.sentencepiece_op(
            model=self._content, shared_name=self._shared_name
        )


def _explain(error, vocab_size):
    message = str(error)
    # sentencepiece: "Vocabulary size too high (8000). Please set it to a value <= 512."
    if "too high" in message:
        limit = message.rsplit("<=", 1)[1].strip(" .\n")
        return (
            f"vocab_size={vocab_size} is more than this corpus allows: give --vocab-size "
            f"(vocab_size) of at most {limit}."
        )
    if "Vocabulary size is smaller" in message or "smaller than required_chars" in message:
        return (
            f"vocab_size={vocab_size} is too small for the characters of this corpus "
            f"({message.strip()}). Use a larger one."
        )
    return f"the tokenizer cannot be trained with vocab_size={vocab_size}: {message.strip()}"
