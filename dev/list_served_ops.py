"""Write the list of ops that a stock TensorFlow Serving links, for `tests/test_saved_model.py`.

    python3.11 -m venv /tmp/tf220
    /tmp/tf220/bin/pip install tensorflow==2.20.0 tensorflow-text==2.20.0
    cd tests
    /tmp/tf220/bin/python ../dev/list_served_ops.py > tf_serving_2.20_ops.txt

The server (`tensorflow_serving/model_servers/BUILD` of tensorflow/serving, branch `r2.20`) links
TensorFlow's C++ library `core:tensorflow`, all ops of TensorFlow Text 2.20.0 and those of Decision
Forests. So the list has these ops, except for those of `_NOT_SERVED`:

- the ops with a kernel for CPUs in `libtensorflow_cc`, loaded without Python, because the other
  libraries of the wheel have ops that no server has, such as `PyFunc`;
- the ops that the import of TensorFlow Text adds.

The list does not have the types and attributes of ops. It lacks the ops of Decision Forests, and
ops without a kernel that a server rewrites before it runs them (`AccumulateNV2`).
"""

import ctypes
import importlib.util
import multiprocessing
import pathlib
import re

SERVER = "TensorFlow Serving 2.20"
# Ops that TensorFlow itself puts into a graph, ops of XLA, which a server switches off, and ops for
# quantization and remote calls, which only the C++ library of the wheel has.
_NOT_SERVED = re.compile(
    r"_.*|Xla.*|CalibrationStatisticsSaver|CustomAggregator|DumpTensor|Rpc.*|DeleteRpcFutureResource"
)


class _Buffer(ctypes.Structure):
    """`TF_Buffer` of TensorFlow's C API."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("length", ctypes.c_size_t),
        ("deallocate", ctypes.c_void_p),
    )


def main() -> None:
    """Print the list."""
    # Use a separate process, because this one loads the Python part of the wheel.
    with multiprocessing.get_context("fork").Pool(1) as pool:
        core = pool.apply(_registered)
    import tensorflow as tf

    python = _on_cpus(_registered())
    import tensorflow_text

    text = _on_cpus(_registered())
    served = _on_cpus(core) | (text - python)

    print(f"# The ops with a kernel for CPUs that {SERVER} links.")
    print(
        f"# Written by dev/list_served_ops.py from tensorflow {tf.__version__} and "
        f"tensorflow-text {tensorflow_text.__version__}."
    )
    print(*sorted(op for op in served if not _NOT_SERVED.fullmatch(op)), sep="\n")


def _registered() -> bytes:
    """Return the kernels of all libraries loaded so far, a serialized `KernelList`."""
    folder = pathlib.Path(importlib.util.find_spec("tensorflow").origin).parent
    ctypes.CDLL(str(folder / "libtensorflow_framework.so.2"))
    library = ctypes.CDLL(str(folder / "libtensorflow_cc.so.2"))
    library.TF_NewStatus.restype = ctypes.c_void_p
    library.TF_GetAllRegisteredKernels.restype = ctypes.POINTER(_Buffer)
    library.TF_GetAllRegisteredKernels.argtypes = [ctypes.c_void_p]
    kernels = library.TF_GetAllRegisteredKernels(library.TF_NewStatus()).contents
    return ctypes.string_at(kernels.data, kernels.length)


def _on_cpus(kernels: bytes) -> set[str]:
    """Return the ops that have a kernel for CPUs."""
    from tensorflow.core.framework import kernel_def_pb2

    return {
        kernel.op
        for kernel in kernel_def_pb2.KernelList.FromString(kernels).kernel
        if kernel.device_type in ("CPU", "DEFAULT")  # DEFAULT is for all devices
    }


if __name__ == "__main__":
    main()
