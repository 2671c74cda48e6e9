"""Files of named arrays: safetensors, PyTorch's, NumPy's and TensorFlow's; no code is run."""

import io
import json
import pathlib
import pickle
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np
import tensorflow as tf

from tf_transformer.errors import InputError
from tf_transformer.inference.versions import require_loadable

_DTYPES = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": tf.bfloat16.as_numpy_dtype,
    "I64": np.int64, "I32": np.int32, "I16": np.int16, "I8": np.int8, "U8": np.uint8,
    "BOOL": np.bool_,
}  # fmt: skip
_STORAGES = {
    "DoubleStorage": "F64", "FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16",
    "LongStorage": "I64", "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8",
    "ByteStorage": "U8", "BoolStorage": "BOOL",
}  # fmt: skip
# A variable of the object `model`, but not the state that an optimizer keeps for it.
_VARIABLE = r"model/((?:(?!\.OPTIMIZER_SLOT).)*)/\.ATTRIBUTES/VARIABLE_VALUE"


class ForeignModelError(InputError):
    """A model of another engine that cannot be imported."""


def existing(path: pathlib.Path) -> pathlib.Path:
    """Return the path of a file, or raise a `ForeignModelError` if the file is missing."""
    if not path.is_file():
        raise ForeignModelError(f"{path}: is missing. Copy it into the folder.")
    return path


class Tensors(dict[str, np.ndarray]):
    """The named arrays of a file, which `take` returns as float32.

    Attributes:
        path: The file, for messages.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], path: pathlib.Path) -> None:
        super().__init__(arrays)
        self.path = path
        self._unused = set(arrays)

    def take(self, *names: str) -> np.ndarray:
        """Return the array that the file has under one or more of these names, and mark it as used.

        Copies under further names must be equal: they are what the engine would compute with.
        """
        found = [name for name in names if name in self]
        if not found:
            raise ForeignModelError(
                f"{self.path}: has no weights named {names[0]}. It is another architecture, or "
                f"incomplete."
            )
        if self[found[0]].dtype.kind in "iu":
            raise ForeignModelError(
                f"{self.path}: {found[0]} has whole numbers: the model is quantised. Import the "
                f"model from which it was made."
            )
        array = np.array(self[found[0]], np.float32)
        for name in found:
            self.require_equal(name, array, found[0])
        return array

    def require_equal(self, name: str, expected: np.ndarray, what: str, atol: float = 0.0) -> None:
        """Mark an array as used; raise a `ForeignModelError` unless it has the expected values."""
        self._unused.discard(name)
        array = np.asarray(self.get(name, expected), np.float32)
        if array.shape != expected.shape or not np.allclose(array, expected, rtol=0.0, atol=atol):
            raise ForeignModelError(
                f"{self.path}: {name} differs from {what}, which it should equal in a model with "
                f"this configuration. Such a model cannot be imported."
            )

    def text(self, name: str) -> str:
        """Return an array of characters as text, without the NUL bytes at its end."""
        return self[name].tobytes().rstrip(b"\0").decode()

    def require_all_used(self, *others: str) -> None:
        """Raise a `ForeignModelError` if an array was not taken.

        Arrays whose names begin with one of `others` may be left.
        """
        if unknown := sorted(name for name in self._unused if not name.startswith(others)):
            raise ForeignModelError(
                f"{self.path}: has weights that this architecture lacks, such as {unknown[0]}. "
                f"It is another architecture."
            )


def read_weights(folder: pathlib.Path) -> Tensors:
    """Read the weights of a folder of Hugging Face, in either of their formats."""
    readers = {"model.safetensors": read_safetensors, "pytorch_model.bin": read_torch}
    for name, read in readers.items():
        if (folder / name).is_file():
            return read(folder / name)
    raise ForeignModelError(f"{folder}: has no {' or '.join(readers)}. Download one of them.")


def read_safetensors(path: pathlib.Path) -> Tensors:
    """Read a `.safetensors` file: the length of a JSON header, the header, and the bytes."""
    content = path.read_bytes()
    try:
        (size,) = struct.unpack_from("<Q", content)
        header = json.loads(content[8 : 8 + size])
        header.pop("__metadata__", None)
        data = memoryview(content)[8 + size :]
        arrays = {}
        for name, entry in header.items():
            numbers = np.frombuffer(data[slice(*entry["data_offsets"])], _DTYPES[entry["dtype"]])
            arrays[name] = numbers.reshape(entry["shape"])
    except (struct.error, ValueError, KeyError, TypeError, AttributeError):
        raise _damaged(path, "safetensors file") from None
    return Tensors(arrays, path)


def read_npz(path: pathlib.Path) -> Tensors:
    """Read a NumPy archive, which may not hold Python objects."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, TypeError, zipfile.BadZipFile, zlib.error):
        raise _damaged(path, "NumPy archive") from None
    return Tensors(arrays, path)


def read_checkpoint(folder: pathlib.Path) -> Tensors:
    """Read the latest checkpoint of a folder: the variables of `model`, by their object paths."""
    state, name = tf.train.get_checkpoint_state(folder), "*"
    if state and state.model_checkpoint_path:
        # Its path may be that of the folder from which the files were copied.
        name = pathlib.PurePath(state.model_checkpoint_path).name
    prefixes = [path.with_suffix("") for path in folder.glob(f"{name}.index")]
    if len(prefixes) != 1:
        raise ForeignModelError(
            f"{folder}: has {len(prefixes)} checkpoints ({name}.index). Give a folder with one, or "
            f"with the file named checkpoint, which says which is the latest."
        )
    require_loadable(prefixes[0])
    try:
        reader = tf.train.load_checkpoint(str(prefixes[0]))
        paths = [re.fullmatch(_VARIABLE, name) for name in reader.get_variable_to_shape_map()]
        arrays = {path[1]: reader.get_tensor(path[0]) for path in paths if path}
    except (tf.errors.OpError, RuntimeError):
        raise _damaged(prefixes[0], "checkpoint of TensorFlow") from None
    return Tensors(arrays, prefixes[0])


def read_torch(path: pathlib.Path) -> Tensors:
    """Read a file of `torch.save`: a zip archive, or the pickles of releases before 1.6.

    Only the functions that build tensors are allowed in the pickle; ours are run instead.
    """
    try:
        with path.open("rb") as file:
            tensors = _read_archive(file) if zipfile.is_zipfile(file) else _read_legacy(file)
        arrays = {name: tensor.view() for name, tensor in tensors.items()}
    except ForeignModelError as error:
        raise ForeignModelError(f"{path}: {error}") from None
    except Exception:  # a damaged pickle raises errors of any class
        raise _damaged(path, "file of PyTorch") from None
    return Tensors(arrays, path)


def _damaged(path: pathlib.Path, kind: str) -> ForeignModelError:
    return ForeignModelError(f"{path}: no {kind}, or a damaged one. Download it again.")


def _tensor(
    storage: np.ndarray, offset: int, shape: Sequence[int], strides: Sequence[int], *_: Any
) -> np.ndarray:
    """Return a view of a storage, which is an array of the numbers that tensors share."""
    flat = storage[offset:]
    # Strides could point outside of the storage, and so outside of its memory.
    reach = sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
    if min([offset, *shape, *strides]) < 0 or reach >= flat.size:
        raise ValueError("a tensor reaches beyond its storage")
    strides = [step * flat.itemsize for step in strides]
    return np.lib.stride_tricks.as_strided(flat, shape, strides, writeable=False)


class _Unpickler(pickle.Unpickler):
    """Reads a dict of tensors, and refuses to import anything else."""

    def __init__(self, file: BinaryIO, load_storage: Callable[[Any], np.ndarray]) -> None:
        super().__init__(file, encoding="utf-8")
        self.persistent_load = load_storage

    def find_class(self, module: str, name: str) -> Any:
        known = {
            ("collections", "OrderedDict"): dict,
            ("torch._utils", "_rebuild_tensor_v2"): _tensor,
            ("torch._utils", "_rebuild_parameter"): lambda tensor, *_: tensor,
            **{("torch", kind): kind for kind in _STORAGES},
        }
        if (module, name) not in known:
            raise ForeignModelError(
                f"its pickle asks for {module}.{name}, which no weights need. Do not trust it."
            )
        return known[module, name]


def _read_archive(file: BinaryIO) -> dict[str, np.ndarray]:
    with zipfile.ZipFile(file) as archive:
        (pickled,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
        folder = pickled.removesuffix("data.pkl")

        def load(reference: tuple) -> np.ndarray:
            _, kind, key, *_ = reference
            return np.frombuffer(archive.read(f"{folder}data/{key}"), _DTYPES[_STORAGES[kind]])

        return _Unpickler(io.BytesIO(archive.read(pickled)), load).load()


def _read_legacy(file: BinaryIO) -> dict[str, np.ndarray]:
    storages: dict[str, np.ndarray] = {}
    file.seek(0)

    def load(reference: tuple) -> np.ndarray:
        _, kind, key, _, size, *_ = reference
        return storages.setdefault(key, np.zeros(size, _DTYPES[_STORAGES[kind]]))

    _, _, _, tensors, keys = (_Unpickler(file, load).load() for _ in range(5))
    for key in keys:  # the numbers, each time behind their number
        content = storages[key].view(np.uint8)
        file.seek(8, io.SEEK_CUR)
        if file.readinto(content) < content.size:
            raise EOFError
    return tensors
