"""Export of a translator to a SavedModel, for TensorFlow Serving and any TensorFlow program."""

import os
import pathlib
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from tf_transformer.decoding.search_loop import SEARCH_LOOP
from tf_transformer.export.folding import freeze
from tf_transformer.export.manifest import EXTRA, ExportError, version_folder, write_manifest
from tf_transformer.export.tf_serving import write_server_files, write_version_files
from tf_transformer.files import atomic_folder
from tf_transformer.inference.graph import ExportTranslator
from tf_transformer.inference.translator import Translator
from tf_transformer.inference.versions import SAVED_MODEL
from tf_transformer.machine import only_errors_of_tensorflow


def export_saved_model(
    translator: Translator,
    path: str | os.PathLike[str],
    version: int | None = None,
    manifest: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> pathlib.Path:
    """Write a translator and settings for TensorFlow Serving; return the folder `path/VERSION`.

    The same export by two processes has the same bytes, except for the time in the manifest. (A
    second export by one process differs, because a process numbers the names of its functions.)

    Args:
        translator: A translator of a model in memory, see `Translator.from_model`. A `Transformer`
            is exported in the form that `freeze` returns.
        path, version, overwrite: See `version_folder`.
        manifest: Plain values that describe it, see `write_manifest`.

    Raises:
        ExportError: The translator came from a SavedModel, TensorFlow cannot write the files, or
            `version_folder` raises it.

    Example:
        >>> path = tt.export_saved_model(translator, folder / "demo")
        >>> path.name
        '1'
        >>> tt.Translator.load(path)("a b") == translator("a b")
        True
    """
    module = translator.module
    if not isinstance(module, ExportTranslator):
        raise ExportError("this translator came from a SavedModel; copy that folder instead.")
    model = freeze(module.searches.model, module.search.max_length)
    tokenizers = module.source.tokenizer, module.target.tokenizer
    frozen = ExportTranslator(model, *tokenizers, module.search)
    return write_saved_model(frozen, path, version, manifest, overwrite)


def write_saved_model(
    module: ExportTranslator,
    path: str | os.PathLike[str],
    version: int | None = None,
    manifest: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> pathlib.Path:
    """Do what `export_saved_model` does, with the model as it is."""
    target = version_folder(SAVED_MODEL, path, version, overwrite)
    with atomic_folder(target, overwrite=overwrite) as folder:
        try:
            # Gradients refer to operations by name, and the names of a search change below.
            options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
            with only_errors_of_tensorflow():  # a warning would name the temporary folder
                tf.saved_model.save(module, str(folder), module.signatures(), options)
        except tf.errors.OpError as error:
            reason = str(error.message).splitlines()[0]
            raise ExportError(f"{path}: cannot be written: {reason}. Free some space.") from error
        # The fingerprint has a random number and digests of the graph before it is changed.
        (folder / "fingerprint.pb").unlink()
        if getattr(module.searches.model, "is_sequential", False):
            _search_in_one_thread(folder / SAVED_MODEL)
        write_version_files(folder, module.signatures())
        write_manifest(folder, manifest, EXTRA)
    write_server_files(path)
    return target


def _search_in_one_thread(path):
    """Let one thread run the operations of each search, in an order that is known before it starts.

    TensorFlow's usual executor finds out after each operation which others are ready, and has
    operations of its own for the variables of a loop: a fifth of the time of one sentence. The
    other executor cannot copy tensors to and from a GPU, so a search on a GPU has the usual one.
    """
    saved = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    library = saved.meta_graphs[0].graph_def.library
    functions = {function.signature.name: function for function in library.function}

    def copy_of(function, suffix):
        copy = library.function.add()
        copy.CopyFrom(function)
        copy.signature.name += suffix
        return copy

    def in_one_thread(function):
        copy = copy_of(function, "_in_one_thread")
        for loop in filter(_is_search, copy.node_def):
            loop.attr["_lower_using_switch_merge"].b = False
            for part in ("cond", "body"):
                called = loop.attr[part].func
                called.attr["_executor"].s = b"SINGLE_THREADED_EXECUTOR"
                called.name = in_one_thread(functions[called.name]).signature.name
        return copy

    for function in functions.values():
        if any(_is_search(node) and "/" not in node.name for node in function.node_def):
            # If it were inlined, each of its operations would cost time on a CPU, too.
            usual = copy_of(function, "_usual")
            usual.attr["_noinline"].b = True
            # A branch has to be inlined to run on several devices, so it is a call of that.
            on_gpu = copy_of(function, "_on_gpu")
            _only_call(on_gpu, "StatefulPartitionedCall").attr["f"].func.name = usual.signature.name
            branches = on_gpu, in_one_thread(function)
            call = _only_call(function, "Case", "device:index:0")
            call.attr["_lower_using_switch_merge"].b = True
            for branch in branches:
                call.attr["branches"].list.func.add(name=branch.signature.name)
            device = function.node_def.add(name="device", op="DeviceIndex")
            device.attr["device_names"].list.s.append(b"GPU")
    path.write_bytes(saved.SerializeToString(deterministic=True))


def _is_search(node):
    return node.op in ("While", "StatelessWhile") and node.name.startswith(SEARCH_LOOP)


def _only_call(function, op, *inputs):
    """Replace the body of a function by a call, with these and its own inputs; return the call."""
    signature = function.signature
    for field in ("node_def", "ret", "control_ret"):
        function.ClearField(field)
    inputs = [*inputs, *(argument.name for argument in signature.input_arg)]
    call = function.node_def.add(name="call", op=op, input=inputs)
    for name, arguments in (("Tin", signature.input_arg), ("Tout", signature.output_arg)):
        call.attr[name].list.type.extend(argument.type for argument in arguments)
    for position, argument in enumerate(signature.output_arg):
        function.ret[argument.name] = f"call:output:{position}"
    # Python does not load a function whose control outputs name a node several times.
    signature.control_output[:] = ["call"]
    function.control_ret["call"] = "call"
    return call
