"""Parallel translation in the order of the texts; importing this loads no TensorFlow."""

import concurrent.futures
import itertools
from collections.abc import Callable, Iterator
from typing import TypeVar

_BATCHES_SORTED_TOGETHER = 16  # many, for little padding, and yet not many read ahead

S, T = TypeVar("S"), TypeVar("T")


def translate_in_order(
    texts: Iterator[S], translate: Callable[[list[S]], list[T]], batch_size: int, threads: int
) -> Iterator[T]:
    """Translate any number of texts in parallel batches; yield results in the texts' order.

    Args:
        texts: Texts or tuples of texts; some batches of them are read ahead.
        translate: Translates a batch; it is called from several threads.
        batch_size: Texts in a batch. Texts of similar length share a batch.
        threads: Number of batches translated at a time.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1; received {batch_size}.")
    group_size = batch_size * _BATCHES_SORTED_TOGETHER
    group = list(itertools.islice(texts, group_size))
    if 0 < len(group) <= batch_size:
        # A thread for one batch would take a millisecond, as long as a short translation.
        yield from translate(group)
        return
    pool = concurrent.futures.ThreadPoolExecutor(threads)
    before = []  # the batches of the previous group, as indices, with their futures
    try:
        while group or before:
            order = sorted(range(len(group)), key=lambda i: sum(map(len, group[i])), reverse=True)
            batches = [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
            jobs = [(batch, pool.submit(translate, [group[i] for i in batch])) for batch in batches]
            group = list(itertools.islice(texts, group_size))
            # Submit a group before waiting for the previous one, so that no thread is idle.
            found = {}
            for batch, future in before:
                found.update(zip(batch, future.result(), strict=True))
            yield from (found[index] for index in range(len(found)))
            before = jobs
    finally:
        # Without waiting, since a thread of the pool may be what collects this generator.
        pool.shutdown(wait=False, cancel_futures=True)
