"""Results for the next epoch, made in the background while the last ones are used."""

import multiprocessing
import multiprocessing.connection
import multiprocessing.pool
import pickle
import signal
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_transformer.errors import InputError


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
        ChildProcessError: The process was killed, for want of memory for example.
    """

    def __init__(self, function: Callable[[int], Any]) -> None:
        self._function, self._connection = function, None

    def __call__(self, epoch: int) -> Any:
        if self._connection is None:
            context = multiprocessing.get_context("spawn")  # TensorFlow does not survive a fork
            self._connection, theirs = context.Pipe()
            # Pickled here, since unpickling calls TensorFlow, which would take memory of a GPU.
            arguments = pickle.dumps(self._function), theirs
            context.Process(target=_answer, args=arguments, daemon=True).start()
            theirs.close()
        try:
            self._connection.send(epoch)
            result = self._connection.recv()
        except (EOFError, OSError):
            message = "The process that adds noise was killed, perhaps for want of memory."
            raise ChildProcessError(message) from None
        if isinstance(result, Exception):
            raise result
        return result


def _answer(pickled: bytes, connection: multiprocessing.connection.Connection) -> None:
    """Call the function for each epoch that comes, until the other process has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other process decides when to end
    tf.config.set_visible_devices([], "GPU")
    function = pickle.loads(pickled)
    try:
        while True:
            try:
                result = function(connection.recv())
            except InputError as error:
                result = error
            connection.send(result)
    except (EOFError, OSError):  # of the connection
        pass
