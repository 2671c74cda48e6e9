"""Results for the next epoch, made in the background while the last ones are used."""

import multiprocessing.pool
from collections.abc import Callable
from typing import Any


class Prefetched:
    """A function of the epoch, which is called for the next epoch while a result is used.

    Only two results are kept.
    """

    def __init__(self, function: Callable[[int], Any]) -> None:
        self._function, self._found = function, {}
        self._pool = multiprocessing.pool.ThreadPool(1)  # of daemons, for which no process waits

    def __call__(self, epoch: int) -> Any:
        self._found = {
            each: self._found.get(each) or self._pool.apply_async(self._function, (each,))
            for each in (epoch, epoch + 1)
        }
        return self._found[epoch].get()
