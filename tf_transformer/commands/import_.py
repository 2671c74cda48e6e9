"""Make a run directory of a model that another engine trained.

Read a folder as it was downloaded, and write its model as a run that can be exported, evaluated
and so on, but not resumed. The format marian is that of Marian (an .npz file, decoder.yml
and vocabularies) and of Hugging Face's Marian models, such as OPUS-MT's (config.json, the weights,
source.spm, target.spm and vocab.json). The format opennmt-tf is a run of OpenNMT-tf 2: its folder
of checkpoints with model_description.py, and its settings (data.yml). The format bert is that of
Hugging Face's BERT models (config.json, the weights, vocab.txt and tokenizer_config.json); such a
model learns to translate when it is fine-tuned.

tf-transformer import marian opus-mt-de-en --run-dir runs/opus
"""

import pathlib
from typing import Literal

from tf_transformer.commands.options import Checked, argument, option
from tf_transformer.errors import InputError
from tf_transformer.machine import quiet
from tf_transformer.runs.run_directory import RunDirectory


class Options(Checked):
    """The options of `import`."""

    format: Literal["marian", "opennmt-tf", "bert"] = argument("FORMAT", "marian, opennmt-tf, bert")
    folder: str = argument("FOLDER", "the folder of the model's files")
    run_dir: str = option(..., "the run directory to write", "DIR")
    tag: str | None = option(None, "put this tag in front of every source", "'>>deu<<'")
    config: str | None = option(
        None, "OpenNMT-tf's data.yml or Marian's decoder.yml (default: the only one)", "F"
    )


def run(options: Options) -> int:
    """Import a model, and print its size and the next commands."""
    folder = pathlib.Path(options.folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: is no folder. Give the folder of the model's files.")
    is_hugging_face = (folder / "config.json").is_file()
    if options.config and (options.format == "bert" or is_hugging_face):
        raise InputError("--config names settings of OpenNMT-tf or Marian itself. Omit it.")
    RunDirectory.create(options.run_dir)
    with quiet():
        from tf_transformer.importing.bert import read_bert
        from tf_transformer.importing.foreign_model import write_run
        from tf_transformer.importing.hugging_face_marian import read_hugging_face_marian
        from tf_transformer.importing.marian import read_marian
        from tf_transformer.importing.opennmt_tf import read_opennmt_tf
    read = {
        "marian": read_hugging_face_marian if is_hugging_face else read_marian,
        "opennmt-tf": read_opennmt_tf,
        "bert": read_bert,
    }[options.format]
    settings = [pathlib.Path(options.config)] if options.config else []
    try:
        found = read(folder, *settings)
    except InputError:
        raise
    # A damaged YAML or JSON file can have values of any type.
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise InputError(f"{folder}: a file is damaged ({error}). Download it again.") from error
    model = write_run(options.run_dir, found, str(folder), options.tag)
    print(f"Read {', '.join(map(str, found.files))}.", *found.notes, sep="\n")
    sizes = model.config.source_vocab_size, model.config.target_vocab_size
    print(f"{model.count_params():,} parameters, {' and '.join(f'{x:,}' for x in sizes)} subwords.")
    run_directory = RunDirectory.open(options.run_dir)
    print(f"Next: {run_directory.next_commands(run_directory.config())}")
    return 0
