"""Batches of a token budget, with little padding, in an order that is a pure function."""

import itertools

import numpy as np
import tensorflow as tf

from tf_transformer.data.lines import DataError
from tf_transformer.data.tokenized_text import TokenizedText


class TokenBatches:
    """Batches of a token budget: sentences of like length together, so that little is padding.

    Sentences are sorted by target and source length, cut where the budget is full, and the
    batches shuffled; sentences of the very same lengths change places each epoch. The shapes of
    the batches are the same in every epoch, and their content and order are a pure function of
    `(seed, epoch)`: a position in the data is two integers.

    Args:
        text: `TokenizedText`.
        batch_tokens: int, positions in one batch on the longer side, padding included.
        pad_id, bos_id, eos_id: int, as the tokenizer has them.
        seed: int, or None for batches in order of length, unshuffled (validation).

    Attributes:
        padding_share: float, share of the positions of both sides that are padding.

    Raises:
        DataError: there is no pair to batch.
    """

    def __init__(self, text, batch_tokens, *, pad_id, bos_id, eos_id, seed=None):
        if not len(text):
            raise DataError(
                f"no sentence pair is left to batch: {text.num_too_long:,} had more pieces than "
                f"max_length allows. Raise it, or check the corpus."
            )
        self._text = text
        self._pad_id, self._bos_id, self._eos_id = pad_id, bos_id, eos_id
        self._seed = seed
        # Each side carries one id besides its pieces: the end, or before the target the begin.
        source_lengths, target_lengths = text.source_lengths + 1, text.target_lengths + 1
        self._length_classes = _length_classes(source_lengths, target_lengths)
        order = np.argsort(self._length_classes, kind="stable")
        self._bounds = _cut(np.maximum(source_lengths, target_lengths)[order], batch_tokens)
        starts, stops = self._bounds.T
        positions = sum(
            ((stops - starts) * np.maximum.reduceat(lengths[order], starts)).sum()
            for lengths in (source_lengths, target_lengths)
        )
        used = source_lengths.sum(dtype=np.int64) + target_lengths.sum(dtype=np.int64)
        self.padding_share = float(1 - used / positions)

    @classmethod
    def from_text(
        cls,
        parallel_text,
        source_tokenizer,
        target_tokenizer,
        *,
        batch_tokens=4096,
        max_length=128,
        seed=None,
        cache_dir=None,
    ):
        """Tokenizes parallel text and batches it, with the ids of the target's tokenizer.

        Args:
            parallel_text: `ParallelText` or `TextFiles`.
            source_tokenizer, target_tokenizer: tokenizers, the same one for a joint vocabulary.
            batch_tokens: int, positions in one batch on the longer side, padding included.
            max_length: int, pieces a side may have, the end id included; longer pairs are left
                out and counted in `num_too_long`.
            seed: int, or None for batches in order of length, unshuffled (validation).
            cache_dir: path of a folder that keeps the ids, see `TokenizedText.build`; None to
                hold them in memory.

        Returns:
            `TokenBatches`.

        Raises:
            DataError: no pair is left, or the cache cannot be written.
            ValueError: the tokenizers have different special ids.
        """
        if (source_tokenizer.pad_id, source_tokenizer.eos_id) != (
            target_tokenizer.pad_id,
            target_tokenizer.eos_id,
        ):
            raise ValueError(
                "source and target tokenizer must have the same padding and end ids; received "
                f"{source_tokenizer.pad_id}, {source_tokenizer.eos_id} and "
                f"{target_tokenizer.pad_id}, {target_tokenizer.eos_id}."
            )
        return cls(
            TokenizedText.build(
                parallel_text, source_tokenizer, target_tokenizer, max_length, cache_dir
            ),
            batch_tokens,
            pad_id=target_tokenizer.pad_id,
            bos_id=target_tokenizer.bos_id,
            eos_id=target_tokenizer.eos_id,
            seed=seed,
        )

    def __len__(self):
        """Batches in one epoch."""
        return len(self._bounds)

    @property
    def num_too_long(self):
        """Pairs left out because a side was too long."""
        return self._text.num_too_long

    @property
    def num_target_tokens(self):
        """Tokens to predict in one epoch."""
        return self._text.num_target_tokens

    def rows(self, epoch):
        """The batches of one epoch: a list of int arrays of sentence numbers."""
        if self._seed is None:
            order, bounds = np.argsort(self._length_classes, kind="stable"), self._bounds
        else:
            random = np.random.default_rng((self._seed, epoch))
            shuffled = random.permutation(len(self._text))
            order = shuffled[np.argsort(self._length_classes[shuffled], kind="stable")]
            bounds = random.permutation(self._bounds)
        return [order[start:stop] for start, stop in bounds]

    def batch(self, rows):
        """The arrays of one batch.

        Args:
            rows: int array of sentence numbers.

        Returns:
            inputs, a dict of `source_ids (B, S)` and `target_ids (B, T)`, and labels `(B, T)`, all
            int32; `target_ids` begins with the begin id, `labels` ends with the end id.
        """
        sources, source_lengths = self._text.padded_sources(rows, self._pad_id)
        targets, target_lengths = self._text.padded_targets(rows, self._pad_id)
        inputs = {
            "source_ids": self._with_ends(sources, source_lengths),
            "target_ids": np.insert(targets, 0, self._bos_id, axis=1),
        }
        return inputs, self._with_ends(targets, target_lengths)

    def dataset(
        self, first_epoch=0, num_epochs=None, skip=0, accumulation=1, labels_as_input=False
    ):
        """The batches as a `tf.data.Dataset` for `model.fit`.

        Args:
            first_epoch: int, the epoch to begin with.
            num_epochs: int, epochs until the end; None never ends (give `fit` a
                `steps_per_epoch`).
            skip: int, batches of the first epoch to leave out.
            accumulation: int, batches whose gradients make one update. From 2 on, each batch has
                a weight, its share of the tokens of the `accumulation` batches times their
                number, with which the mean over the batches is the mean over their tokens. The
                groups run on from epoch to epoch; one that is not full at the end is left out,
                since no update would come of it.
            labels_as_input: bool, whether the inputs hold the labels too, for a model that is to
                score them instead of making logits.

        Returns:
            `tf.data.Dataset` of (inputs, labels), see `batch`; with accumulation of (inputs,
            labels, sample_weight `(B,)` float32).
        """
        ids = tf.TensorSpec([None, None], tf.int32)
        names = ("source_ids", "target_ids", *(["labels"] if labels_as_input else []))
        signature = (dict.fromkeys(names, ids), ids)
        if accumulation > 1:
            signature = (*signature, tf.TensorSpec([None], tf.float32))

        def batch(rows):
            inputs, labels = self.batch(rows)
            return {**inputs, "labels": labels} if labels_as_input else inputs, labels

        def generate():
            stream = self._stream(first_epoch, num_epochs, skip)
            if accumulation == 1:
                yield from map(batch, stream)
            while len(group := list(itertools.islice(stream, accumulation))) == accumulation > 1:
                tokens = [self._text.num_target_tokens_of(rows) for rows in group]
                for rows, count in zip(group, tokens, strict=True):
                    weight = accumulation * count / sum(tokens)
                    yield *batch(rows), np.full(len(rows), weight, np.float32)

        dataset = tf.data.Dataset.from_generator(generate, output_signature=signature)
        if num_epochs is not None:
            count = (num_epochs * len(self) - skip) // accumulation * accumulation
            dataset = dataset.apply(tf.data.experimental.assert_cardinality(count))
        return dataset.prefetch(tf.data.AUTOTUNE)

    def _stream(self, first_epoch, num_epochs, skip):
        """The sentence numbers of batch after batch, epoch after epoch."""
        epochs = itertools.count(first_epoch)
        for epoch in itertools.islice(epochs, num_epochs):
            yield from self.rows(epoch)[skip if epoch == first_epoch else 0 :]

    def _with_ends(self, ids, lengths):
        ids = np.insert(ids, ids.shape[1], self._pad_id, axis=1)
        ids[np.arange(len(ids)), lengths] = self._eos_id
        return ids


def _length_classes(source_lengths, target_lengths):
    """A number for each pair of lengths, which rises in the order that sentences are sorted in.

    Targets come by length. Source lengths rise in one group of equal targets and fall in the
    next: no jumps. Where a side has at most 255 positions the numbers have 16 bits, which NumPy
    sorts in linear time.
    """
    longest = int(source_lengths.max())
    serpentine = np.where(target_lengths % 2, source_lengths, longest - source_lengths)
    most = (int(target_lengths.max()) + 1) * (longest + 1)
    dtype = np.uint16 if most <= 2**16 else np.int64
    return target_lengths.astype(dtype) * dtype(longest + 1) + serpentine.astype(dtype)


def _cut(lengths, batch_tokens):
    """Cuts sorted sentences into batches of at most `batch_tokens` padded positions.

    Returns:
        int64 array `(batches, 2)`: where each begins and where it ends.
    """
    bounds, start = [], 0
    while start < len(lengths):
        # Were none longer than the first, so many would fit.
        most = max(1, batch_tokens // int(lengths[start]))
        longest = np.maximum.accumulate(lengths[start : start + most])
        fits = np.arange(1, len(longest) + 1) * longest <= batch_tokens
        # The product rises, so those that fit come first; one sentence alone is always a batch.
        stop = start + max(1, int(fits.sum()))
        bounds.append((start, stop))
        start = stop
    return np.array(bounds, np.int64)
