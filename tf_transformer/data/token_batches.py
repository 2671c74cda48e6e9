"""Token-budget batches with little padding, in an order that depends only on seed and epoch."""

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from tf_transformer.data.lines import FilePath
from tf_transformer.data.marks import MarkedText, Marks
from tf_transformer.data.mixture import TaggedText
from tf_transformer.data.packing import PACKED_INPUTS, PackedRows, pack, packed_arrays
from tf_transformer.data.padding import SpecialIds, length_classes, padded_arrays, split, split_into
from tf_transformer.data.prefetch import Prefetched
from tf_transformer.data.processes import OtherProcess
from tf_transformer.data.text import SentencePairs
from tf_transformer.data.tokenized_text import ChangingText, TokenizedText
from tf_transformer.errors import InputError
from tf_transformer.tokenizers import GraphTokenizer

_PREFETCHED_BATCHES = 8
_ROWS_PER_FREE_ROW = 100  # of packed text that changes from epoch to epoch


class TokenBatches:
    """Batches of sentences of similar length, each with at most `batch_tokens` tokens.

    Sentences are sorted by target and source length and split where a batch is full. Each epoch
    shuffles the batches, and sentences of equal lengths among themselves. Every epoch has the same
    batch shapes, unless noise or a mixture changes the text. Content and order depend only on
    `(seed, epoch)`, so two integers, the epoch and the batch, give the position of a run in the
    data.

    With `row_length` the pairs are packed into rows of this length in a random order, and each
    epoch shuffles the rows: all batches have one shape, for which XLA compiles a training step.
    Where the text changes from epoch to epoch, each is packed anew, with room for 1 % more rows
    than epoch 0 has; of rows beyond that, a random choice is left out of that epoch.

    Args:
        text: The sentence pairs.
        batch_tokens: Maximum number of tokens on the longer side of a batch, padding included. A
            longer sentence forms a batch of its own. With `text_of_epoch` or `rows_of_epoch` the
            batches of an epoch with longer sentences have as many more tokens.
        pad_id: Token id of padding.
        bos_id: Token id that begins the decoder's input.
        eos_id: Token id that ends a sentence.
        source_eos_id: Token id that ends a source; None for `eos_id`, `pad_id` for no end.
        seed: Seed of the order; None keeps the batches sorted by length, as for validation.
        text_of_epoch: Function that returns the token ids of the same pairs for an epoch, with new
            noise for example. The number of batches is that of `text` in every epoch.
        rows_of_epoch: Function that returns the indices of the pairs in an epoch, each any number
            of times; None if all epochs have every pair once. The number of batches is that of
            epoch 0 in every epoch.
        row_length: Number of tokens in a packed row, `batch_tokens / row_length` of which make a
            batch; None for a row of its own for each pair.

    Attributes:
        padding_fraction: Fraction of the tokens of both sides that are padding.
        num_too_long: Number of pairs dropped because a side had too many tokens.
        num_target_tokens: Number of tokens to predict in one epoch, sentence ends included.
        failure: The error that ended a dataset, of which TensorFlow keeps only the text; or None.

    Raises:
        ValueError: If `pad_id` and `eos_id` are equal, or a side is longer than `row_length`.

    Example:
        >>> text = tt.ParallelText(("Guten Morgen!", "Danke!"), ("Good morning!", "Thanks!"))
        >>> batches = tt.TokenBatches.from_text(text, tokenizer, tokenizer, batch_tokens=64, seed=0)
        >>> inputs, labels = next(iter(batches.dataset()))
        >>> inputs["target_ids"].shape == labels.shape
        True
    """

    def __init__(
        self,
        text: TokenizedText,
        batch_tokens: int,
        *,
        pad_id: int,
        bos_id: int,
        eos_id: int,
        source_eos_id: int | None = None,
        seed: int | None = None,
        text_of_epoch: Callable[[int], TokenizedText] | None = None,
        rows_of_epoch: Callable[[int], np.ndarray] | None = None,
        row_length: int | None = None,
    ) -> None:
        if pad_id == eos_id:
            raise ValueError(
                f"pad_id and eos_id are both {pad_id}, but the loss ignores padding, so no "
                "sentence end would be learned; use two different ids"
            )
        self._text = text
        source_eos_id = eos_id if source_eos_id is None else source_eos_id
        self._special = SpecialIds(pad_id, bos_id, eos_id, source_eos_id)
        self._seed, self._row_length = seed, row_length
        self.failure: InputError | OSError | None = None
        self._rows_of_epoch = rows_of_epoch
        self._text_of_epoch = text_of_epoch or (lambda _: text)
        if text_of_epoch and row_length is None:
            self._text_of_epoch = Prefetched(text_of_epoch)
        lengths = text.lengths + 1  # with the end id, or the begin id in the decoder's input
        if rows_of_epoch:
            lengths = lengths[:, rows_of_epoch(0)]
        self.num_too_long = len(text.dropped)
        self.num_target_tokens = int(lengths[1].sum(dtype=np.int64))
        if row_length is not None:
            if (longest := int(lengths.max())) > row_length:
                raise ValueError(f"row_length={row_length}, but a side has {longest} tokens.")
            size = max(1, batch_tokens // row_length)
            if text_of_epoch or rows_of_epoch:
                self._packed_of_epoch = Prefetched(self._packed)
                number = len(self._packed_of_epoch(0)[1])
                number += number // _ROWS_PER_FREE_ROW
            else:
                packed = self._packed(0)
                self._packed_of_epoch, number = (lambda _: packed), len(packed[1])
            starts = np.arange(0, number, size)
            self._bounds = np.stack([starts, starts + size], axis=1)
            padded = 2 * len(starts) * size * row_length
        else:
            self._length_classes = length_classes(lengths)
            in_order = lengths[:, np.argsort(self._length_classes, kind="stable")]
            self._bounds = split(in_order.max(axis=0), batch_tokens)
            starts, stops = self._bounds.T
            padded = ((stops - starts) * np.maximum.reduceat(in_order, starts, axis=1)).sum()
        self.padding_fraction = float(1 - lengths.sum(dtype=np.int64) / padded)

    @classmethod
    def from_text(
        cls,
        parallel_text: SentencePairs,
        source_tokenizer: GraphTokenizer,
        target_tokenizer: GraphTokenizer,
        *,
        batch_tokens: int = 4096,
        max_length: int = 128,
        seed: int | None = None,
        cache_dir: FilePath | None = None,
        source_noise: float = 0.0,
        source_tag: str = "",
        marks: Marks | None = None,
        mark_practice: float = 0.0,
        row_length: int | None = None,
        in_process: bool = False,
        processes: int = 1,
    ) -> "TokenBatches":
        """Tokenize parallel text and batch it with the special ids of the target tokenizer.

        Args:
            parallel_text: The sentence pairs; a `Mixture` with weights needs a seed.
            source_tokenizer: Tokenizer of the sources.
            target_tokenizer: Tokenizer of the targets; the same for a joint vocabulary.
            batch_tokens: See the constructor, also for `seed`.
            max_length: Maximum number of tokens in a sentence, its end included. Pairs with a
                longer side are dropped and counted in `num_too_long`.
            cache_dir: See `TokenizedText.build`.
            source_noise: Probability for `add_noise`, drawn anew in each epoch; needs a seed.
            source_tag: Token in front of each source, as `Search.source_tag` for translations.
            marks: The marks that replace placeholders, tags and the like; None keeps these.
            mark_practice: Probability for `practise_marks`, drawn anew in each epoch.
            row_length: See the constructor; at least `max_length`.
            in_process: Whether noise and practice are made in a process of their own, for GPUs,
                which would otherwise wait for Python's lock. The text must be picklable then, and a
                script needs `if __name__ == "__main__":`.
            processes: See `TokenizedText.build`.

        Raises:
            DataError: If no pair is left, or the cache cannot be written.
            ValueError: If the tokenizers have different padding or end ids, a probability is not
                from 0 to 1, or no seed is given for noise or a mixture with weights.
        """
        if not (0 <= source_noise <= 1 and 0 <= mark_practice <= 1):
            raise ValueError(f"must be from 0 to 1: {source_noise=}, {mark_practice=}.")
        if (source_noise or mark_practice) and seed is None:
            raise ValueError("source_noise and mark_practice need a seed; give one.")
        pad_id, eos_id = target_tokenizer.pad_id, target_tokenizer.eos_id
        source_eos_id = source_tokenizer.eos_id  # padding if sources have no end
        if source_tokenizer.pad_id != pad_id or source_eos_id not in (eos_id, pad_id):
            raise ValueError(
                f"the target tokenizer has the padding and end ids {pad_id} and {eos_id}, but the "
                f"source tokenizer {source_tokenizer.pad_id} and {source_tokenizer.eos_id}; give "
                "two tokenizers with the same special ids"
            )
        parallel_text = MarkedText(parallel_text, marks) if marks else parallel_text
        parallel_text = TaggedText(parallel_text, source_tag) if source_tag else parallel_text
        tokenizers = source_tokenizer, target_tokenizer
        text = TokenizedText.build(parallel_text, tokenizers, max_length, cache_dir, processes)
        changing = None
        if source_noise or mark_practice:
            changes = source_noise, mark_practice, marks
            changing = ChangingText(text, parallel_text, tokenizers, max_length, seed, *changes)
            changing = OtherProcess(changing) if in_process else changing
        return cls(
            text,
            batch_tokens,
            pad_id=pad_id,
            bos_id=target_tokenizer.bos_id,
            eos_id=eos_id,
            source_eos_id=source_eos_id,
            seed=seed,
            text_of_epoch=changing,
            rows_of_epoch=parallel_text.rows_of_epoch(text.dropped, seed),
            row_length=row_length,
        )

    def __len__(self) -> int:
        """Return the number of batches in one epoch."""
        return len(self._bounds)

    def batch_indices(self, epoch: int) -> list[np.ndarray]:
        """Return the batches of one epoch, each an int array `(B,)` of sentences or packed rows."""
        if self._row_length is not None:
            rows = np.arange(max(int(self._bounds[-1, 1]), len(self._packed_of_epoch(epoch)[1])))
            if self._seed is not None:
                rows = np.random.default_rng((self._seed, epoch)).permutation(rows)
            return [rows[start:stop] for start, stop in self._bounds]
        text, classes, bounds = self._text_of_epoch(epoch), self._length_classes, self._bounds
        rows = self._rows_of_epoch(epoch) if self._rows_of_epoch else np.arange(len(text))
        if text is not self._text or self._rows_of_epoch:
            lengths = text.lengths[:, rows] + 1
            classes = length_classes(lengths)
            longest = lengths.max(axis=0)[np.argsort(classes, kind="stable")]
            bounds = split_into(longest, len(self))
        order = np.arange(len(rows))
        if self._seed is not None:
            random = np.random.default_rng((self._seed, epoch))
            order, bounds = random.permutation(order), random.permutation(bounds)
        order = order[np.argsort(classes[order], kind="stable")]
        return [rows[order[start:stop]] for start, stop in bounds]

    def batch(
        self, indices: np.ndarray, epoch: int = 0
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return the arrays of one batch: the sentences or rows at `indices (B,)` in an epoch.

        Returns:
            Inputs, a dict of `source_ids (B, S)` and `target_ids (B, T)`, and labels `(B, T)`, all
            int32. `target_ids` has the begin id before each sentence, the others the end id after.
            Packed rows have further inputs, see `packed_arrays`.
        """
        if self._row_length is not None:
            text, packed = self._packed_of_epoch(epoch)
            rows = [packed.of_row(row) for row in indices]
            return packed_arrays(text, rows, self._row_length, self._special)
        return padded_arrays(self._text_of_epoch(epoch), indices, self._special)

    def dataset(
        self,
        first_epoch: int = 0,
        num_epochs: int | None = None,
        skip: int = 0,
        replicas: Sequence[int] = (0,),
        num_replicas: int = 1,
    ) -> tf.data.Dataset:
        """Return the batches as a `tf.data.Dataset` for `model.fit`.

        tf.data autotuning is disabled; pass integers, not AUTOTUNE, to later transformations.

        Args:
            first_epoch: Epoch to begin with.
            num_epochs: Number of epochs; None for an endless dataset, which needs `fit`'s
                `steps_per_epoch`.
            skip: Number of batches of the first epoch to skip.
            replicas: The replicas of this worker. Each batch comes once for each of them, with its
                share of the rows: every `num_replicas`-th row.
            num_replicas: Number of replicas of all workers.

        Returns:
            Dataset of (inputs, labels); see `batch`.

        Raises:
            ValueError: If `skip` is out of range.
        """
        if not 0 <= skip <= len(self):
            raise ValueError(f"an epoch has {len(self)} batches; received skip={skip}.")
        ids, names = tf.TensorSpec([None, None], tf.int32), ["source_ids", "target_ids"]
        if self._row_length is not None:
            size = int(self._bounds[0, 1]) if num_replicas == 1 else None
            ids, names = tf.TensorSpec([size, self._row_length], tf.int32), PACKED_INPUTS
        signature = (dict.fromkeys(names, ids), ids)

        def arrays() -> Iterator[tuple]:
            try:
                for epoch in itertools.islice(itertools.count(first_epoch), num_epochs):
                    for indices in self.batch_indices(epoch)[skip if epoch == first_epoch else 0 :]:
                        for replica in replicas:
                            yield self.batch(indices[replica::num_replicas], epoch)
            except (InputError, OSError) as error:  # a disk of a network may be gone
                self.failure = error
                raise

        dataset = tf.data.Dataset.from_generator(arrays, output_signature=signature)
        count = tf.data.INFINITE_CARDINALITY  # known, so that replicas need not agree on an end
        if num_epochs is not None:
            count = (num_epochs * len(self) - skip) * len(replicas)
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(count))
        # Deleting an iterator waits for the autotuning thread, which may sleep for a minute.
        options = tf.data.Options()
        options.autotune.enabled = False
        return dataset.prefetch(_PREFETCHED_BATCHES).with_options(options)

    def _packed(self, epoch: int) -> tuple[TokenizedText, PackedRows]:
        """Return the text of an epoch and its packed pairs."""
        text = self._text_of_epoch(epoch)
        rows = self._rows_of_epoch(epoch) if self._rows_of_epoch else np.arange(len(text))
        if self._seed is not None:  # the shuffling of rows is seeded with (seed, epoch)
            rows = np.random.default_rng((self._seed, epoch, 2)).permutation(rows)
        return text, pack(text.lengths + 1, self._row_length, rows)
