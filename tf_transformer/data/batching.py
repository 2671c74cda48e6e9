"""Batches of a token budget, with little padding, in an order that is a pure function."""

import dataclasses
import itertools

import numpy as np
import tensorflow as tf

from tf_transformer.data.parallel import DataError


@dataclasses.dataclass(frozen=True)
class TokenizedText:
    """Aligned sentences as ids.

    Attributes:
        sources, targets: lists of int32 arrays, without begin and end ids.
        num_too_long: int, pairs left out because a side had more pieces than allowed.
    """

    sources: list
    targets: list
    num_too_long: int = 0

    def __len__(self):
        return len(self.sources)

    @property
    def num_target_tokens(self):
        """Tokens the model learns to predict in one pass: the targets and their end ids."""
        return sum(map(len, self.targets)) + len(self)


def tokenize(parallel_text, source_tokenizer, target_tokenizer, max_length):
    """Tokenizes parallel text, and drops the pairs with a side that is too long.

    Args:
        parallel_text: `ParallelText`.
        source_tokenizer, target_tokenizer: tokenizers with `encode`.
        max_length: int, pieces a side may have, the end id included.

    Returns:
        `TokenizedText`.
    """
    sources, targets = [], []
    pairs = zip(
        source_tokenizer.encode(parallel_text.sources),
        target_tokenizer.encode(parallel_text.targets),
        strict=True,
    )
    for source, target in pairs:
        if max(len(source), len(target)) < max_length:
            sources.append(np.array(source, np.int32))
            targets.append(np.array(target, np.int32))
    return TokenizedText(sources, targets, len(parallel_text) - len(sources))


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
        source_lengths = np.array([len(ids) + 1 for ids in text.sources])
        target_lengths = np.array([len(ids) + 1 for ids in text.targets])
        # Source lengths rise in one group of equal targets and fall in the next: no jumps.
        serpentine = np.where(target_lengths % 2, source_lengths, -source_lengths)
        self._sort_keys = (serpentine, target_lengths)
        order = np.lexsort(self._sort_keys)
        self._bounds = _cut(np.maximum(source_lengths, target_lengths)[order], batch_tokens)
        positions = sum(
            (stop - start) * (source_lengths[rows].max() + target_lengths[rows].max())
            for start, stop in self._bounds
            for rows in [order[start:stop]]
        )
        self.padding_share = float(1 - (source_lengths.sum() + target_lengths.sum()) / positions)

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
    ):
        """Tokenizes parallel text and batches it, with the ids of the target's tokenizer.

        Args:
            parallel_text: `ParallelText`.
            source_tokenizer, target_tokenizer: tokenizers, the same one for a joint vocabulary.
            batch_tokens: int, positions in one batch on the longer side, padding included.
            max_length: int, pieces a side may have, the end id included; longer pairs are left
                out and counted in `num_too_long`.
            seed: int, or None for batches in order of length, unshuffled (validation).

        Returns:
            `TokenBatches`.

        Raises:
            DataError: no pair is left.
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
            tokenize(parallel_text, source_tokenizer, target_tokenizer, max_length),
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
            order = np.lexsort(self._sort_keys)
            return [order[start:stop] for start, stop in self._bounds]
        random = np.random.default_rng((self._seed, epoch))
        shuffled = random.permutation(len(self._text))
        order = shuffled[np.lexsort([key[shuffled] for key in self._sort_keys])]
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
        sources = [self._text.sources[row] for row in rows]
        targets = [self._text.targets[row] for row in rows]
        bos, eos = [self._bos_id], [self._eos_id]
        inputs = {
            "source_ids": self._pad([np.append(ids, eos) for ids in sources]),
            "target_ids": self._pad([np.append(bos, ids) for ids in targets]),
        }
        return inputs, self._pad([np.append(ids, eos) for ids in targets])

    def dataset(self, first_epoch=0, num_epochs=None, skip=0, accumulation=1):
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

        Returns:
            `tf.data.Dataset` of (inputs, labels), see `batch`; with accumulation of (inputs,
            labels, sample_weight `(B,)` float32).
        """
        ids = tf.TensorSpec([None, None], tf.int32)
        signature = ({"source_ids": ids, "target_ids": ids}, ids)
        if accumulation > 1:
            signature = (*signature, tf.TensorSpec([None], tf.float32))

        def generate():
            stream = self._stream(first_epoch, num_epochs, skip)
            if accumulation == 1:
                yield from map(self.batch, stream)
            while len(group := list(itertools.islice(stream, accumulation))) == accumulation > 1:
                tokens = [sum(len(self._text.targets[row]) + 1 for row in rows) for rows in group]
                for rows, count in zip(group, tokens, strict=True):
                    weight = accumulation * count / sum(tokens)
                    yield *self.batch(rows), np.full(len(rows), weight, np.float32)

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

    def _pad(self, ids):
        padded = np.full((len(ids), max(map(len, ids))), self._pad_id, np.int32)
        for row, sentence in zip(padded, ids, strict=True):
            row[: len(sentence)] = sentence
        return padded


def _cut(lengths, batch_tokens):
    """Cuts sorted sentences into batches of at most `batch_tokens` padded positions."""
    bounds, start, longest = [], 0, 0
    for index, length in enumerate(lengths):
        longest = max(longest, length)
        if (index + 1 - start) * longest > batch_tokens and index > start:
            bounds.append((start, index))
            start, longest = index, length
    bounds.append((start, len(lengths)))
    return bounds
