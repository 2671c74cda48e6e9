"""TensorFlow and this process: its threads, and what a fork breaks."""

import contextlib
import os

import tensorflow as tf

_process_of_tensorflow: int | None = None


def run_in_callers_thread() -> None:
    """Lets each operation run in the thread that calls it; several batches use the other cores.

    Small operations cost less so than handed from thread to thread. Where TensorFlow has run
    something in this process already, this does nothing.
    """
    with contextlib.suppress(RuntimeError):
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(-1)


def require_process_of_tensorflow() -> None:
    """Raises in a forked process, in which TensorFlow waits for threads that are not there."""
    global _process_of_tensorflow
    if _process_of_tensorflow is None:
        _process_of_tensorflow = os.getpid()
    if _process_of_tensorflow != os.getpid():
        raise RuntimeError(
            "this process was forked from one that had a Translator, and TensorFlow does not work "
            "after a fork. Start processes with multiprocessing.get_context('spawn'), or make the "
            "first Translator after the fork."
        )
