"""Helpers of the tests of imported models."""

import json
import shutil
import struct

import ctranslate2
import sentencepiece
from commands import assert_refused, run_here
from small_runs import opened

import tf_transformer as tt
from tf_transformer.importing.tensors import _DTYPES, read_safetensors
from tf_transformer.runs import restore
from tf_transformer.runs.run_directory import RunDirectory


def name_of(folder):
    return "/".join(folder.parts[-2:])


def import_all(kind, folders, runs):
    """Imports the models in folders by the command; returns their runs, in the folder `runs`."""
    found = {folder: runs / name_of(folder) for folder in folders}
    for folder, run_dir in found.items():
        done = run_here("import", kind, folder, "--run-dir", run_dir)
        assert "parameters" in done.stdout and "tf-transformer export" in done.stdout
    return found


def translator_of(run_dir, model, tokenizers):
    return restore.translator_of(RunDirectory.open(run_dir).config().data, model, *tokenizers)


def exported(run_dir, lines, folder):
    """The translations of lines, which are the same once a run is exported."""
    expected = opened(run_dir)[0](lines)
    run_here("export", run_dir, folder / "saved", "--beam-size=1")
    assert tt.Translator.load(folder / "saved")(lines) == expected
    return expected


def of_ctranslate2(run_dir, tokenizers, lines, folder, **options):
    """The subwords that CTranslate2 makes of lines, and how they become text."""
    run_here("export", run_dir, folder / "fast", "--format=ctranslate2")
    # CTranslate2 reads subwords, and has the table itself.
    for side, tokenizer in zip(("source", "target"), tokenizers, strict=True):
        assert (folder / "fast" / "1" / f"{side}.model").read_bytes() == tokenizer.splitter
    splitter, joiner = (
        sentencepiece.SentencePieceProcessor(model_proto=t.splitter) for t in tokenizers
    )
    engine = ctranslate2.Translator(str(folder / "fast" / "1"), intra_threads=1)
    subwords = splitter.encode(lines, out_type=str)
    results = engine.translate_batch(subwords, beam_size=1, min_decoding_length=0, **options)
    return [result.hypotheses[0] for result in results], joiner.decode_pieces


def stored(name, change):
    """Returns a function that changes the arrays, by name, of the file in a folder."""

    def spoil(folder):
        path = folder / name
        arrays = dict(read_safetensors(path))
        change(arrays)
        header, content = {}, b""
        for key, array in arrays.items():
            end = len(content) + array.nbytes
            dtype = next(name for name, kind in _DTYPES.items() if kind == array.dtype)
            offsets = [len(content), end]
            header[key] = {"dtype": dtype, "shape": array.shape, "data_offsets": offsets}
            content += array.tobytes()
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + content)

    return spoil


def change(name, old, new):
    """Returns a function that changes the text of a file in a folder."""

    def spoil(folder):
        path = folder / name
        text = path.read_text("utf-8")
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")

    return spoil


def remove(*names):
    """Returns a function that removes files of a folder."""
    return lambda folder: [(folder / name).unlink() for name in names]


def write(name, content):
    """Returns a function that writes a file of a folder; the content is text or bytes."""
    content = content if isinstance(content, bytes) else content.encode()
    return lambda folder: (folder / name).write_bytes(content)


def assert_import_refused(kind, fixture, spoil, words, tmp_path, capfd):
    """A copy of a model that is spoiled is refused in one line, and nothing is written."""
    folder = shutil.copytree(fixture, tmp_path / "folder")
    spoil(folder)
    arguments = ["import", kind, folder, "--run-dir", tmp_path / "run"]
    assert_refused(arguments, [words], capfd, tmp_path)
