"""The checks of `doctor` that need TensorFlow, in a process that cannot import this package.

So nothing of the exporter can help a SavedModel here, as nothing will in a server, and a crash of
TensorFlow ends this process only. It is a script: it reads a line of JSON, `{"sys_path": …,
"folder": …}`, and prints a line for each check, `{"name": …, "status": …, "message": …, …}`.

Like `servable.py` and `ops.py`, which it loads by their paths, it imports nothing of the package.
"""

import importlib.util
import json
import os
import pathlib
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

Result = dict[str, Any]
# A row of inputs of a signature, by the inputs' names.
Row = dict[str, Any]

_BAD_RECORD = "A server does not load a model with such records: export it again."
_HEADLINES = ("Graph execution error", "Detected at node", "<stack traces", "File ")
_MOST_LINES = 5
_ROWS = 7  # of a batch whose rows are counted; a size that no record and no server prefers
_STAND_IN = b"This is a text."
_SECONDS = 2.0  # for timing one batch size
_MOST_RUNS = 30


def main() -> None:
    """Runs the checks that standard input asks for."""
    job = json.loads(sys.stdin.readline())
    sys.path[:] = job["sys_path"]
    sys.modules["tf_transformer"] = None  # makes importing it an error
    # What libraries print must not get between the results.
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for result in checks(job["folder"]):
        print(json.dumps(result), file=results, flush=True)


def checks(folder: str | None) -> Iterator[Result]:
    """Yields the results of all checks, that of TensorFlow itself first.

    Args:
        folder: A SavedModel; None checks TensorFlow only.
    """
    try:
        import tensorflow as tf
        import tensorflow_text  # noqa: F401
    except Exception as error:  # whatever a wheel that does not fit raises
        yield _failed("tensorflow", f"does not load: {_line(error)} Install it again.")
        return
    yield _tensorflow(tf)
    if folder is None:
        return
    yield from _graph(tf, pathlib.Path(folder))
    before = _memory().get("resident_bytes")
    began = time.monotonic()
    try:
        servable = _module("servable.py").Servable(folder)
    except Exception as error:  # as many classes of error as there are kinds of damage
        yield _failed(
            "session", f"does not load: {_line(error)} Copy it again, or export it again."
        )
        return
    seconds = time.monotonic() - began
    yield _ok("session", f"loaded in {seconds:.1f} s, without tf_transformer", seconds=seconds)
    yield from _variables(servable)
    rows: dict[str, list[Row]] = {}
    yield from _warm_up(servable, rows)
    for name, signature in servable.signatures.items():
        rows[name] = rows.get(name) or [dict.fromkeys(signature.inputs, _STAND_IN)]
    yield from _signatures(servable, rows)
    if "serving_default" in servable.signatures:
        yield _latency(servable, rows["serving_default"])
    yield _ok("memory", **_memory_result(before))
    servable.close()


def _tensorflow(tf: Any) -> Result:
    """What TensorFlow says of itself and of the devices."""
    gpus = [
        tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name)
        for gpu in tf.config.list_physical_devices("GPU")
    ]
    devices = ", ".join(gpus) or "no GPU"
    message = f"{tf.__version__} loads; devices: {devices}"
    if not gpus and os.path.exists("/proc/driver/nvidia/version"):
        message += (
            ". There is an NVIDIA driver, but TensorFlow cannot use it: "
            "pip install 'tensorflow[and-cuda]'"
        )
        return _note("tensorflow", message, gpus=gpus)
    return _ok("tensorflow", message, gpus=gpus)


def _graph(tf: Any, folder: pathlib.Path) -> Iterator[Result]:
    """Checks `saved_model.pb`: assets, ops, XLA."""
    ops = _module("doctor/ops.py")
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf import saved_model_pb2

    try:
        saved_model = saved_model_pb2.SavedModel.FromString(
            (folder / "saved_model.pb").read_bytes()
        )
        meta_graph = next(m for m in saved_model.meta_graphs if "serve" in m.meta_info_def.tags)
    except (OSError, DecodeError, StopIteration) as error:
        yield _failed(
            "graph", f"saved_model.pb cannot be read: {_line(error)} Copy or export it again."
        )
        return
    missing = [
        f"assets/{asset.filename} is missing. Copy it again, or export it again."
        for asset in meta_graph.asset_file_def
        if not (folder / "assets" / asset.filename).is_file()
    ]
    assets = len(meta_graph.asset_file_def)
    message = f"all {assets} of the graph are there" if assets else "the graph needs none"
    yield from _lines("assets", missing, message, assets=assets)
    parts = ops.nodes_by_part(meta_graph)
    names = {node.op for nodes in parts.values() for node in nodes}
    yield from _lines(
        "ops",
        ops.unserved(parts, ops.served_ops()),
        f"{len(names)} ops, and {ops.SERVER} has all of them",
        ops=len(names),
        server=ops.SERVER,
    )
    yield from _lines("xla", ops.needing_xla(parts), "nothing needs XLA")


def _variables(servable: Any) -> Iterator[Result]:
    unset = [
        f"{name} has no value after restoring, and what reads it fails. Export it again."
        for name in servable.unset_variables()
    ]
    yield from _lines("variables", unset, "restoring sets all")


def _warm_up(servable: Any, rows: dict[str, list[Row]]) -> Iterator[Result]:
    """Replays the warm-up records, and puts their rows into `rows` by signature."""
    try:
        warm_up = _module("warm_up.py")
    except ImportError as error:
        yield _failed("warm-up", f"{_line(error)} pip install tensorflow-serving-api")
        return
    path = pathlib.Path(servable.folder) / warm_up.FILE
    if not path.is_file():
        yield _note(
            "warm-up",
            f"no records ({warm_up.FILE}): the first requests to a server are slow. A stand-in "
            f"text is used below.",
        )
        return
    try:
        records = warm_up.read_records(path)
    except Exception as error:
        yield _failed("warm-up", f"{warm_up.FILE} cannot be read: {_line(error)} {_BAD_RECORD}")
        return
    problems = []
    if len(records) > warm_up.MOST_RECORDS:
        problems.append(
            f"{len(records):,} records are more than {warm_up.MOST_RECORDS:,}. {_BAD_RECORD}"
        )
    began = time.monotonic()
    for number, record in enumerate(records[: warm_up.MOST_RECORDS], start=1):
        try:
            name, inputs = warm_up.request_of(record, servable.signatures)
            servable.run(name, inputs)
            found = zip(*inputs.values(), strict=True)
            rows.setdefault(name, []).extend(dict(zip(inputs, row, strict=True)) for row in found)
        except Exception as error:
            problems.append(f"record {number}: {_line(error)} {_BAD_RECORD}")
    seconds = time.monotonic() - began
    for name in sorted(servable.signatures.keys() - rows.keys()):
        yield _note("warm-up", f"no record of {name}: its first request to a server is slow")
    yield from _lines(
        "warm-up",
        problems,
        f"{len(records)} records replayed in {seconds:.1f} s",
        records=len(records),
        seconds=round(seconds, 3),
    )


def _signatures(servable: Any, rows: dict[str, list[Row]]) -> Iterator[Result]:
    """Runs each signature and checks what comes out: rows, UTF-8, finite numbers."""
    problems = []
    for name in sorted(servable.signatures):
        try:
            problems.extend(
                f"{name}: {problem}" for problem in _problems(servable, name, rows[name])
            )
        except Exception as error:
            problems.append(f"{name} does not run: {_line(error)} Export it again.")
    yield from _lines(
        "signatures",
        problems,
        f"{', '.join(sorted(servable.signatures))}: {_ROWS} rows in, {_ROWS} out",
        signatures=sorted(servable.signatures),
    )


def _problems(servable: Any, name: str, rows: list[Row]) -> Iterator[str]:
    signature = servable.signatures[name]
    for key, spec in (signature.inputs | signature.outputs).items():
        if not spec.shape or spec.shape[0] is not None:
            yield f"{key} has no axis for the batch, so a server cannot batch requests."
    outputs = servable.run(name, _batch(rows, _ROWS))
    for key, array in outputs.items():
        if array.shape[:1] != (_ROWS,):
            yield f"{_ROWS} rows in, but {key} has the shape {array.shape}."
        elif array.dtype == object and not all(map(_is_utf8, array.flat)):
            yield f"{key} holds text that is not UTF-8, which a server cannot write as JSON."
        elif array.dtype.kind == "f" and not (abs(array) < float("inf")).all():
            yield f"{key} holds numbers that are not finite, which JSON does not have."


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _latency(servable: Any, rows: list[Row]) -> Result:
    """The median time of `serving_default` at two batch sizes."""
    medians, runs = {}, {}
    for size in (1, 32):
        try:
            times = _times(lambda batch: servable.run("serving_default", batch), rows, size)
        except Exception as error:
            return _failed("latency", f"batch {size} does not run: {_line(error)}")
        medians[size], runs[size] = statistics.median(times), len(times)
    return _ok(
        "latency",
        "serving_default takes "
        + " and ".join(f"{1000 * medians[size]:.1f} ms at batch {size}" for size in medians)
        + f" (texts as above; medians of {runs[1]} and {runs[32]})",
        milliseconds={str(size): round(1000 * median, 3) for size, median in medians.items()},
        runs={str(size): number for size, number in runs.items()},
    )


def _times(run: Callable[[Any], Any], rows: list[Row], size: int) -> list[float]:
    """Seconds of some runs, after one that is not counted, each with the next rows."""
    run(_batch(rows, size))
    times: list[float] = []
    while len(times) < _MOST_RUNS and (len(times) < 3 or sum(times) < _SECONDS):
        batch = _batch(rows, size, start=len(times) * size)
        began = time.perf_counter()
        run(batch)
        times.append(time.perf_counter() - began)
    return times


def _batch(rows: list[Row], size: int, start: int = 0) -> dict[str, list[Any]]:
    """Rows as inputs of a signature, repeated where there are too few."""
    chosen = [rows[(start + i) % len(rows)] for i in range(size)]
    return {key: [row[key] for row in chosen] for key in chosen[0]}


def _memory() -> dict[str, int]:
    """What the process holds, and the most that it held, in bytes."""
    status = pathlib.Path("/proc/self/status")
    if not status.exists():  # macOS counts in bytes
        return {"peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
    kibibytes = {"resident_bytes": lines["VmRSS"], "peak_bytes": lines["VmHWM"]}
    return {name: int(text.split()[0]) * 1024 for name, text in kibibytes.items()}


def _memory_result(before: int | None) -> dict[str, Any]:
    memory = _memory()
    message = f"{_mebibytes(memory['peak_bytes'])} at the peak"
    if before is not None:
        memory["without_model_bytes"] = before
        resident = _mebibytes(memory["resident_bytes"])
        message = f"{resident} resident, {message}, {_mebibytes(before)} before the model"
    return {"message": message, **memory}


def _mebibytes(number: int) -> str:
    return f"{number / 2**20:,.0f} MiB"


def _module(path: str) -> ModuleType:
    """A module of `serving/` by its path there."""
    file = pathlib.Path(__file__).parents[1] / path
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _line(error: BaseException) -> str:
    """The line of an error's message that says most, ended by a full stop."""
    lines = [line.strip() for line in str(error).splitlines()]
    # Before the message a session puts a headline, and where in the graph it was.
    told = (line for line in lines if line and not line.startswith(_HEADLINES))
    text = next(told, type(error).__name__)
    return text[:300].rstrip(".") + "."


def _ok(name: str, message: str, **values: Any) -> Result:
    return {"name": name, "status": "ok", "message": message, **values}


def _note(name: str, message: str, **values: Any) -> Result:
    return {"name": name, "status": "note", "message": message, **values}


def _failed(name: str, message: str, **values: Any) -> Result:
    return {"name": name, "status": "FAIL", "message": message, **values}


def _lines(name: str, problems: list[str], otherwise: str, **values: Any) -> Iterator[Result]:
    """A failure for each problem, or a success where there is none."""
    if not problems:
        yield _ok(name, otherwise, **values)
        return
    for problem in problems[:_MOST_LINES]:
        yield _failed(name, problem)
    if len(problems) > _MOST_LINES:
        yield _failed(name, f"and {len(problems) - _MOST_LINES} more of the same kind")


if __name__ == "__main__":
    main()
