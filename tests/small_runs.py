"""Runs of a second or two on a small copy task, and what callbacks read of a run."""

import types

import h5py
from small_models import has_setting

from tf_transformer import cli
from tf_transformer.config_fields import flag
from tf_transformer.evaluation import BLEU
from tf_transformer.run_config import RunConfig
from tf_transformer.run_tables import TokenizerConfig
from tf_transformer.runs.checkpoints import Checkpoints
from tf_transformer.runs.restore import restore_model, translator_of
from tf_transformer.runs.run_directory import RunDirectory

STARTED = 1000.0  # where the clock of `step_clock` begins
SIZES = {"num_layers": 1, "d_model": 16, "num_heads": 2, "d_ff": 32, "num_units": 16}


def settings(architecture):
    """The settings of such a run; a model takes the sizes that it has."""
    sizes = {name: size for name, size in SIZES.items() if has_setting(architecture, name)}
    return [
        "--corpus=copy", f"--architecture={architecture}",
        *(f"{flag(name)}={size}" for name, size in sizes.items()),
        "--vocab-size=272", "--batch-tokens=400", "--max-length=30", "--accumulation-steps=2",
        "--no-repair-loops",
    ]  # fmt: skip


SETTINGS = settings("transformer")


def a_run(path, training=None, metric=BLEU, **attributes):
    """What callbacks read of a `Run`."""
    given = {
        "checkpoint_steps": None,
        "checkpoint_minutes": 15,
        "accumulation_steps": 1,
        "tensorboard": False,
        "minutes": None,
        "patience": None,
        "keep_checkpoints": 0,
        "validation_steps": 4,
    }
    given |= training or {}

    class Batches:
        padding_fraction, num_target_tokens = 0.03125, 300

        def __len__(self):
            return 3

    return types.SimpleNamespace(**{
        "checkpoints": Checkpoints(path / "checkpoints"),
        "config": types.SimpleNamespace(training=types.SimpleNamespace(**given)),
        "workers": types.SimpleNamespace(is_chief=True, all_reduce_max=int),
        "data": types.SimpleNamespace(batches=Batches()),
        "directory": types.SimpleNamespace(log_path=path / "log.jsonl"),
        "metric": metric, "signatures": {"val_bleu": "nrefs:1"}, "metadata": {"seed": 1},
        "total_steps": 100, "schedule": None, **attributes,
    })  # fmt: skip


def train(run_dir, *options):
    assert cli.main(["train", f"--run-dir={run_dir}", *options]) == 0


def write_run(path, model, tokenizers, data):
    """A run whose only checkpoint is this model."""
    run, (source, target) = RunDirectory.create(path), tokenizers
    tokenizer = TokenizerConfig(source.vocab_size, joint=source is target)
    run.begin(RunConfig(data, tokenizer, model.config), (source, target))
    metadata = {"run_metadata": model.config.to_dict()}
    Checkpoints(run.checkpoints_path).write(model, 7, {"val_bleu": 1.0}, **metadata)
    return path


def opened(run_dir):
    """A translator of a run, and the model and tokenizers that it has."""
    directory = RunDirectory.open(run_dir)
    model, *tokenizers, _ = restore_model(directory)
    return translator_of(directory.config().data, model, *tokenizers), model, *tokenizers


def same_checkpoints(run_dir, other_dir):
    """Whether the newest checkpoints of two runs are the same, bit for bit."""
    latest = (Checkpoints(path / "checkpoints").latest() for path in (run_dir, other_dir))
    one, other = map(arrays_of, latest)
    return len(one) > 0 and one == other


def arrays_of(checkpoint):
    """The bytes of the arrays in a checkpoint's file, by name."""
    names = []
    with h5py.File(checkpoint.path / "model.weights.h5") as file:
        file.visit(names.append)
        arrays = {name: file[name] for name in names if isinstance(file[name], h5py.Dataset)}
        return {name: array[()].tobytes() for name, array in arrays.items()}
