"""Token-budget batches with little padding, in an order that depends only on seed and epoch."""

import functools
import itertools
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from tf_transformer.data.corpus import Remainder
from tf_transformer.data.text import FilePath, ParallelText, TextFiles
from tf_transformer.data.tokens import TokenizedText, Tokenizer

_PREFETCHED_BATCHES = 8


class TokenBatches:
    """Batches of at most a number of tokens, of sentences of similar length.

    Sentences are sorted by target and source length, split where a batch is full, and the batches
    shuffled; sentences of equal lengths are shuffled among themselves in each epoch. Every epoch
    has the same batch shapes, unless noise changes the text. Content and order are a pure function
    of `(seed, epoch)`, so two integers, epoch and batch, say where in the data a run is.

    Args:
        text: The sentence pairs.
        batch_tokens: Most tokens in one batch on the longer side, padding included. A longer
            sentence is a batch of its own.
        pad_id: Token id of padding.
        bos_id: Token id that begins the decoder's input.
        eos_id: Token id that ends a sentence.
        seed: Seed of the order; None for batches sorted by length, unshuffled (validation).
        text_of_epoch: Returns the token ids of the same pairs in an epoch, such as with noise. Each
            epoch has as many batches as `text` would have, larger ones if its text is longer.

    Attributes:
        padding_fraction: Fraction of the tokens of both sides that are padding.

    Raises:
        ValueError: If padding and end share an id.
    """

    def __init__(
        self,
        text: TokenizedText,
        batch_tokens: int,
        *,
        pad_id: int,
        bos_id: int,
        eos_id: int,
        seed: int | None = None,
        text_of_epoch: Callable[[int], TokenizedText] | None = None,
    ) -> None:
        if pad_id == eos_id:
            raise ValueError(
                f"pad_id and eos_id are both {pad_id}, but padding has no loss, so no sentence "
                "end would be learned; use two ids"
            )
        self._text = text
        self._pad_id, self._bos_id, self._eos_id = pad_id, bos_id, eos_id
        self._seed = seed
        self._text_of_epoch = functools.lru_cache(maxsize=1)(text_of_epoch or (lambda _: text))
        source_lengths, target_lengths = _lengths(text)
        self._length_classes = _length_classes(source_lengths, target_lengths)
        order = np.argsort(self._length_classes, kind="stable")
        self._bounds = _split(np.maximum(source_lengths, target_lengths)[order], batch_tokens)
        starts, stops = self._bounds.T
        padded = sum(
            ((stops - starts) * np.maximum.reduceat(lengths[order], starts)).sum()
            for lengths in (source_lengths, target_lengths)
        )
        unpadded = source_lengths.sum(dtype=np.int64) + target_lengths.sum(dtype=np.int64)
        self.padding_fraction = float(1 - unpadded / padded)

    @classmethod
    def from_text(
        cls,
        parallel_text: ParallelText | TextFiles | Remainder,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        *,
        batch_tokens: int = 4096,
        max_length: int = 128,
        seed: int | None = None,
        cache_dir: FilePath | None = None,
        source_noise: float = 0.0,
    ) -> "TokenBatches":
        """Tokenizes parallel text and batches it, with the special ids of the target tokenizer.

        Args:
            parallel_text: The sentence pairs.
            source_tokenizer: Tokenizer of the source sentences.
            target_tokenizer: Tokenizer of the target sentences; the same for a joint vocabulary.
            batch_tokens: Most tokens in one batch on the longer side, padding included.
            max_length: Most tokens of a sentence, the end included; pairs with a longer side are
                dropped and counted in `num_too_long`.
            seed: Seed of the order; None for batches sorted by length, unshuffled (validation).
            cache_dir: Directory in which the token ids are kept, see `TokenizedText.build`; None
                to keep them in memory.
            source_noise: Probability of noise in a source, other noise in each epoch, see
                `noise.add_noise`; it needs a seed.

        Raises:
            DataError: If no pair is left, or the cache cannot be written.
            ValueError: If the tokenizers have different padding or end ids.
        """
        source_ids, target_ids = (
            (tokenizer.pad_id, tokenizer.eos_id)
            for tokenizer in (source_tokenizer, target_tokenizer)
        )
        if source_ids != target_ids:
            raise ValueError(
                "source and target tokenizer must have the same padding and end ids; received "
                f"{source_ids[0]}, {source_ids[1]} and {target_ids[0]}, {target_ids[1]}."
            )
        text = TokenizedText.build(
            parallel_text, source_tokenizer, target_tokenizer, max_length, cache_dir
        )

        def noisy(epoch: int) -> TokenizedText:
            # (seed, epoch) is the seed of the order.
            return text.with_noise(
                parallel_text, source_tokenizer, max_length, source_noise, (seed, epoch, 1)
            )

        return cls(
            text,
            batch_tokens,
            pad_id=target_tokenizer.pad_id,
            bos_id=target_tokenizer.bos_id,
            eos_id=target_tokenizer.eos_id,
            seed=seed,
            text_of_epoch=noisy if source_noise else None,
        )

    def __len__(self) -> int:
        """Number of batches in one epoch."""
        return len(self._bounds)

    @property
    def num_too_long(self) -> int:
        """Number of pairs dropped because a side had too many tokens."""
        return self._text.num_too_long

    @property
    def num_target_tokens(self) -> int:
        """Number of tokens to predict in one epoch, the ends included."""
        return self._text.num_target_tokens

    def batch_indices(self, epoch: int) -> list[np.ndarray]:
        """Returns the batches of one epoch, each an int array `(B,)` of sentence indices."""
        classes, bounds = self._plan(epoch)
        if self._seed is None:
            order = np.argsort(classes, kind="stable")
        else:
            random = np.random.default_rng((self._seed, epoch))
            shuffled = random.permutation(len(self._text))
            order = shuffled[np.argsort(classes[shuffled], kind="stable")]
            bounds = random.permutation(bounds)
        return [order[start:stop] for start, stop in bounds]

    def _plan(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the length classes of an epoch's sentences, and the bounds of its batches."""
        text = self._text_of_epoch(epoch)
        if text is self._text:
            return self._length_classes, self._bounds
        source_lengths, target_lengths = _lengths(text)
        classes = _length_classes(source_lengths, target_lengths)
        in_order = np.maximum(source_lengths, target_lengths)[np.argsort(classes, kind="stable")]
        return classes, _split_into(in_order, len(self))

    def batch(
        self, indices: np.ndarray, epoch: int = 0
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Returns the arrays of one batch.

        Args:
            indices: int array `(B,)` of sentence indices.
            epoch: The epoch, by which the noise of the text may differ.

        Returns:
            Inputs, a dict of `source_ids (B, S)` and `target_ids (B, T)`, and labels `(B, T)`, all
            int32; `target_ids` begins with the begin id, `labels` ends with the end id.
        """
        text = self._text_of_epoch(epoch)
        sources, source_lengths = text.padded_sources(indices, self._pad_id)
        targets, target_lengths = text.padded_targets(indices, self._pad_id)
        inputs = {
            "source_ids": self._append_eos(sources, source_lengths),
            "target_ids": np.insert(targets, 0, self._bos_id, axis=1),
        }
        return inputs, self._append_eos(targets, target_lengths)

    def dataset(
        self,
        first_epoch: int = 0,
        num_epochs: int | None = None,
        skip: int = 0,
        accumulation: int = 1,
        labels_as_input: bool = False,
    ) -> tf.data.Dataset:
        """Returns the batches as a `tf.data.Dataset` for `model.fit`.

        Args:
            first_epoch: Epoch to begin with.
            num_epochs: Number of epochs; None for an endless dataset (give `fit` a
                `steps_per_epoch`).
            skip: Number of batches of the first epoch to skip.
            accumulation: Number of batches whose gradients make one update. If it is greater than
                1, each batch has a weight, `accumulation` times its fraction of the tokens of the
                update, with which the mean over the batches is the mean over their tokens.
                Updates span epochs; an incomplete one at the end is dropped.
            labels_as_input: Whether the inputs hold the labels too, for a model that computes
                token statistics itself.

        Returns:
            Dataset of (inputs, labels), see `batch`; with accumulation of (inputs, labels,
            sample_weight `(B,)` float32). tf.data autotuning is disabled; pass integers, not
            AUTOTUNE, to later transformations.

        Raises:
            ValueError: If `skip` is out of range.
        """
        if not 0 <= skip <= len(self):
            raise ValueError(f"an epoch has {len(self)} batches; received skip={skip}.")
        ids = tf.TensorSpec([None, None], tf.int32)
        names = ("source_ids", "target_ids", *(["labels"] if labels_as_input else []))
        signature = (dict.fromkeys(names, ids), ids)
        if accumulation > 1:
            signature = (*signature, tf.TensorSpec([None], tf.float32))

        def batch(indices, epoch):
            inputs, labels = self.batch(indices, epoch)
            if labels_as_input:
                # TensorFlow takes the array's memory without a copy, and an operation may write
                # into an input that it believes to be the only one there.
                inputs = {**inputs, "labels": labels.copy()}
            return inputs, labels

        def generate():
            # Lazy: an update may span epochs, and the ids of only one epoch are kept.
            batches = itertools.starmap(batch, self._stream(first_epoch, num_epochs, skip))
            if accumulation == 1:
                yield from batches
            while len(arrays := list(itertools.islice(batches, accumulation))) == accumulation > 1:
                tokens = [int((labels != self._pad_id).sum()) for _, labels in arrays]
                for (inputs, labels), count in zip(arrays, tokens, strict=True):
                    weight = accumulation * count / sum(tokens)
                    yield inputs, labels, np.full(len(labels), weight, np.float32)

        dataset = tf.data.Dataset.from_generator(generate, output_signature=signature)
        if num_epochs is not None:
            count = (num_epochs * len(self) - skip) // accumulation * accumulation
            dataset = dataset.apply(tf.data.experimental.assert_cardinality(count))
        # Deleting an iterator waits for the thread of autotuning, which may sleep for a minute.
        options = tf.data.Options()
        options.autotune.enabled = False
        return dataset.prefetch(_PREFETCHED_BATCHES).with_options(options)

    def _stream(
        self, first_epoch: int, num_epochs: int | None, skip: int
    ) -> Iterator[tuple[np.ndarray, int]]:
        """Yields the sentence indices of one batch after the other, with their epoch."""
        epochs = itertools.count(first_epoch)
        for epoch in itertools.islice(epochs, num_epochs):
            for indices in self.batch_indices(epoch)[skip if epoch == first_epoch else 0 :]:
                yield indices, epoch

    def _append_eos(self, ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        ids = np.insert(ids, ids.shape[1], self._pad_id, axis=1)
        ids[np.arange(len(ids)), lengths] = self._eos_id
        return ids


def _lengths(text: TokenizedText) -> tuple[np.ndarray, np.ndarray]:
    """Returns the lengths of both sides with the end, or the begin in the decoder's input."""
    return text.source_lengths + 1, text.target_lengths + 1


def _length_classes(source_lengths: np.ndarray, target_lengths: np.ndarray) -> np.ndarray:
    """Returns one sort key for each pair of lengths.

    Targets are sorted by length. Source lengths rise within one target length and fall within the
    next, so that neighbours never differ much. Up to 255 tokens a side the keys have 16 bits,
    which NumPy sorts in linear time.
    """
    longest = int(source_lengths.max())
    serpentine = np.where(target_lengths % 2, source_lengths, longest - source_lengths)
    num_keys = (int(target_lengths.max()) + 1) * (longest + 1)
    dtype = np.uint16 if num_keys <= 2**16 else np.int64
    return target_lengths.astype(dtype) * dtype(longest + 1) + serpentine.astype(dtype)


def _split(lengths: np.ndarray, batch_tokens: int) -> np.ndarray:
    """Splits sorted sentences into batches of at most `batch_tokens` tokens, padding included.

    Returns:
        int64 array `(batches, 2)`: where each batch starts and stops.
    """
    bounds, start = [], 0
    while start < len(lengths):
        # As many as would fit if none were longer than the first.
        most = max(1, batch_tokens // int(lengths[start]))
        longest = np.maximum.accumulate(lengths[start : start + most])
        fits = np.arange(1, len(longest) + 1) * longest <= batch_tokens
        # The product rises, so those that fit come first; a batch has at least one sentence.
        stop = start + max(1, int(fits.sum()))
        bounds.append((start, stop))
        start = stop
    return np.array(bounds, np.int64)


def _split_into(lengths: np.ndarray, count: int) -> np.ndarray:
    """Splits sorted sentences into exactly `count` batches, with about as many tokens in each.

    Args:
        lengths: int array `(sentences,)`, at least `count` of them.
        count: How many batches.

    Returns:
        As `_split`.
    """
    tokens, step = int(lengths.sum()) // count, 1  # as if there were no padding
    while (excess := len(bounds := _split(lengths, max(1, tokens))) - count) > 0:
        # The budget is nearly inverse to the number of batches; doubling ends all other cases.
        tokens += max(step, tokens * excess // count)
        step *= 2
    while missing := count - len(bounds):
        sizes = bounds[:, 1] - bounds[:, 0]
        halved = np.argsort(-sizes, kind="stable")[:missing]
        middles = bounds[halved].sum(axis=1) // 2
        starts = np.sort(np.concatenate([bounds[:, 0], middles[sizes[halved] > 1]]))
        bounds = np.stack([starts, np.append(starts[1:], len(lengths))], axis=1)
    return bounds
