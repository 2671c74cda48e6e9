"""Results for the next epoch, made in the background while the last ones are used."""

import contextlib
import multiprocessing
import multiprocessing.connection
import multiprocessing.pool
import pickle
from collections.abc import Callable
from typing import Any

from tf_transformer.errors import InputError
from tf_transformer.machine import begin_helper


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


class OtherProcess:
    """A function of the epoch that runs in a process of its own, so that it holds no lock of ours.

    The process begins with the first call, and ends with this one. It has its own copy of the
    function, and sees no GPU.

    Raises:
        ChildProcessError: The process was killed, or the function raised an error that is no
            `InputError` or `OSError`.
    """

    def __init__(self, function: Callable[[int], Any]) -> None:
        self._function, self._connection = function, None

    def __call__(self, epoch: int) -> Any:
        if self._connection is None:
            # Pickled here, since unpickling calls TensorFlow, which would take memory of a GPU.
            pickled = pickle.dumps(self._function)
            context = multiprocessing.get_context("spawn")  # TensorFlow does not survive a fork
            ours, theirs = context.Pipe()
            context.Process(target=_answer, args=(pickled, theirs), daemon=True).start()
            theirs.close()
            self._connection = ours
        try:
            self._connection.send(epoch)
            result = self._connection.recv()
        except (EOFError, OSError):
            message = "The process that adds noise was killed, or failed as it says above."
            raise ChildProcessError(message) from None
        if isinstance(result, Exception):
            raise result
        return result


def _answer(pickled: bytes, connection: multiprocessing.connection.Connection) -> None:
    """Call the function for each epoch that comes, until the other process has ended."""
    begin_helper()
    function = pickle.loads(pickled)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            epoch = connection.recv()
            try:
                result = function(epoch)
            except (InputError, OSError) as error:
                result = error
            connection.send(result)
