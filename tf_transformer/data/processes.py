"""Functions that run in processes of their own, which use other cores than this one."""

import contextlib
import multiprocessing
import multiprocessing.connection
import multiprocessing.pool
import multiprocessing.resource_tracker
import pickle
import queue
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tf_transformer.errors import InputError
from tf_transformer.machine import begin_helper, quiet

_MOST_PROCESSES = 16  # of some 300 MB, if they need TensorFlow


class HelperError(InputError):
    """A process of `OtherProcess` was killed, or its function failed."""


def map_in_processes(
    function: Callable[[Any], Any], arguments: Sequence[Any], number: int
) -> Iterator[Any]:
    """Yield the results for some arguments, in their order, as made by up to `number` processes.

    With one argument or process, this one calls the function itself. Function, arguments and
    results must be picklable otherwise, and a script needs `if __name__ == "__main__":`.
    """
    number = min(number, len(arguments), _MOST_PROCESSES)
    if number < 2:
        yield from map(function, arguments)
        return
    processes = [OtherProcess(function) for _ in range(number)]
    idle = queue.SimpleQueue()

    def call(argument: Any) -> Any:
        process = idle.get()
        try:
            return process(argument)
        finally:
            idle.put(process)

    try:
        for process in processes:
            idle.put(process)
        with multiprocessing.pool.ThreadPool(number) as pool:
            yield from pool.imap(call, arguments)
    finally:
        for process in processes:
            process.end()


class OtherProcess:
    """A function that runs in a process of its own, so that it holds no lock of ours.

    The process begins with the first call. It ends when this object is deleted or this process
    ends. It has its own copy of the function, and sees no GPU.

    Raises:
        HelperError: The process was killed, or the function raised an error that is no `InputError`
            or `OSError`.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function, self._connection, self._process = function, None, None

    def __call__(self, argument: Any) -> Any:
        if self._connection is None:
            # Pickled here, since unpickling calls TensorFlow, which would take memory of a GPU.
            pickled = pickle.dumps(self._function)
            context = multiprocessing.get_context("spawn")  # TensorFlow does not survive a fork
            ours, theirs = context.Pipe()
            self._process = context.Process(target=_answer, args=(pickled, theirs), daemon=True)
            # A child inherits the mask: Ctrl-C is for the process that started it. The tracker
            # would begin with the first child, and unmask the signal.
            multiprocessing.resource_tracker.ensure_running()
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
            self._process.start()
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            theirs.close()
            self._connection = ours
        try:
            self._connection.send(argument)
            result = self._connection.recv()
        except (EOFError, OSError):
            how = "was killed, perhaps for lack of memory, or failed as it says above"
            raise HelperError(f"a process that this one started {how}") from None
        if isinstance(result, Exception):
            raise result
        return result

    def end(self) -> None:
        """End the process, whatever it does."""
        if self._connection is not None:
            self._process.kill()
            self._process.join()


def _answer(pickled: bytes, connection: multiprocessing.connection.Connection) -> None:
    """Call the function for each argument that comes, until the other process has ended."""
    begin_helper()
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        with quiet():  # either may load TensorFlow
            function, argument = pickle.loads(pickled), connection.recv()
        while True:
            try:
                result = function(argument)
            except (InputError, OSError) as error:
                result = error
            connection.send(result)
            argument = connection.recv()
