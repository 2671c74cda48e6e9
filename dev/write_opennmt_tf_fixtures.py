"""Train small models with OpenNMT-tf itself and write them, with its answers, for the tests.

Run it in an environment of its own, which the project does not need:

    pip install tensorflow==2.13.1 OpenNMT-tf==2.32.0 "numpy<2"  # Python 3.11
    python dev/write_opennmt_tf_fixtures.py tests/fixtures/opennmt_tf

The training text is the phrasebook. After training, every weight gets some noise, so that no bias
is still 0 and no scale still 1. `train` and `answers` serve other models and texts, too.
"""

import gzip
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import opennmt
import tensorflow as tf
import yaml
from write_marian_fixtures import ODD_TAGS, TAGS, with_tags

PHRASEBOOK = pathlib.Path(__file__).parents[1] / "tf_transformer/data/phrasebook.tsv.gz"
MODEL = "opennmt.models.Transformer"
SIDES = {"source": "de", "target": "en"}
# Small and different in all that can differ between the models that can be imported. `sizes` are
# the subwords of a joint vocabulary, or of each side. With more dropout, models as small as these
# do not learn to end a translation.
MODELS = {
    # As TransformerBaseSharedEmbeddings, but for its sizes.
    "shared": {
        "sizes": [150], "data": {}, "steps": 1200, "model": {
            "num_layers": 2, "num_units": 16, "num_heads": 8, "ffn_inner_dim": 24,
            "share_embeddings": 3,
        },
    },
    "separate": {
        "sizes": [300, 260], "data": {"source_sequence_controls": {"end": True}}, "steps": 2500,
        "model": {
            "num_layers": (1, 2), "num_units": 24, "num_heads": 4, "ffn_inner_dim": 48,
            "dropout": 0.01, "attention_dropout": 0.01, "ffn_dropout": 0.01,
            "ffn_activation": "tf.nn.gelu",
        },
    },
    "target": {
        "sizes": [300, 260], "data": {}, "steps": 2500, "model": {
            "num_layers": 1, "num_units": 24, "num_heads": 2, "ffn_inner_dim": 48,
            "dropout": 0.01, "attention_dropout": 0.01, "ffn_dropout": 0.01,
            "ffn_activation": "tf.nn.swish", "share_embeddings": 2, "pre_norm": False,
            "output_layer_bias": False,
        },
    },
    # As Marian's model of this name.
    "tagged": {
        "sizes": [240, 220], "data": {}, "steps": 4000, "symbols": TAGS, "model": {
            "num_layers": 1, "num_units": 16, "num_heads": 4, "ffn_inner_dim": 32, "dropout": 0.01,
            "attention_dropout": 0.01, "ffn_dropout": 0.01, "share_embeddings": 2,
        },
    },
}  # fmt: skip
ODD = ["Das ist 😀 gut.", "GUTEN ABEND!", "Wo   ist Köln?", "x", "a￭b ％ <unk> ﬁne"]

# The default rules of normalisation are most of a small SentencePiece model.
LEARN = """
import sys, pyonmttok
learner = pyonmttok.SentencePieceLearner(
    keep_vocab=True, vocab_size=int(sys.argv[1]), normalization_rule_name="identity",
    character_coverage=0.999, user_defined_symbols=sys.argv[3])
for path in sys.argv[4:]:
    learner.ingest_file(path)
learner.learn(sys.argv[2])
"""


def run(*arguments):
    """Run Python with these arguments in a process of its own."""
    arguments = [str(argument) for argument in arguments]
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr[-3000:])


def program(name):
    """Return the path of a program of OpenNMT-tf."""
    return pathlib.Path(sys.executable).parent / name


def build_vocabularies(folder, text, sizes, symbols):
    """Write SentencePiece models and vocabularies of the training text; return the `data` table."""
    found, symbols = {}, ",".join(symbols)
    names = list(SIDES) if len(sizes) > 1 else ["joint"]
    for name, size in zip(names, sizes, strict=True):
        languages = [SIDES[name]] if name in SIDES else SIDES.values()
        # Beside TensorFlow the trainer crashes, as does `onmt-build-vocab --sentencepiece`.
        paths = [text / f"train.{each}" for each in languages]
        run("-c", LEARN, size, folder / name, symbols, *paths)
        run(
            program("onmt-build-vocab"), "--from_vocab", folder / f"{name}.vocab", "--from_format",
            "sentencepiece", "--save_vocab", folder / f"{name}.vocab",
        )  # fmt: skip
        for side in [name] if name in SIDES else SIDES:
            found[f"{side}_vocabulary"] = f"{name}.vocab"
            found[f"{side}_tokenization"] = {"mode": "none", "sp_model_path": f"{name}.model"}
    return found


def train(folder, text, sizes, model, data, steps=800, rate=1.0, symbols=()):
    """Train a model in `folder` with onmt-main, on `train.de` and `train.en` in the folder `text`.

    Leaves there what it writes: the last checkpoint, `model_description.py`, and `data.yml`, whose
    paths are relative to the folder.

    Args:
        folder, text: Folders.
        sizes: The numbers of subwords, one for a joint vocabulary or one for each side.
        model: The arguments of `opennmt.models.Transformer`, with text for what is no number.
        data: More settings of the table `data`.
        steps, rate: The number of updates and the factor of the learning rate.
        symbols: The user-defined symbols of the SentencePiece models.
    """
    settings = {
        "model_dir": str(folder),
        "data": {
            **build_vocabularies(folder, text, sizes, symbols),
            **data,
            "train_features_file": str(text / "train.de"),
            "train_labels_file": str(text / "train.en"),
        },
        "params": {
            "optimizer": "LazyAdam", "optimizer_params": {"beta_1": 0.9, "beta_2": 0.998},
            "learning_rate": rate, "label_smoothing": 0.1, "average_loss_in_time": True,
            "decay_type": "NoamDecay",
            "decay_params": {"model_dim": model["num_units"], "warmup_steps": steps // 4},
        },
        "train": {
            "batch_size": 1024, "batch_type": "tokens", "max_step": steps,
            "save_checkpoints_steps": steps, "keep_checkpoint_max": 1,
        },
    }  # fmt: skip
    arguments = "".join(f"    {name}={value},\n" for name, value in model.items())
    code = f"import opennmt\nimport tensorflow as tf\n\nmodel = lambda: {MODEL}(\n{arguments})\n"
    (text / "description.py").write_text(code)
    config = folder / "data.yml"
    config.write_text(yaml.safe_dump(settings))
    run(
        program("onmt-main"),
        "--config",
        config,
        "--model",
        text / "description.py",
        "--seed",
        1,
        "train",
    )
    del settings["model_dir"]
    settings["data"].update(train_features_file="train.de", train_labels_file="train.en")
    config.write_text(yaml.safe_dump(settings, sort_keys=False))


def opened(folder, **params):
    """Return the model in a folder with its variables, and its checkpoint."""
    config = opennmt.load_config([str(folder / "data.yml")])
    config = {**config, "params": {**config["params"], **params}, "model_dir": str(folder)}
    data = {}
    for name, value in config["data"].items():
        is_table = isinstance(value, dict) and "sp_model_path" in value
        value = (
            {**value, "sp_model_path": str(folder / value["sp_model_path"])} if is_table else value
        )
        data[name] = str(folder / value) if isinstance(value, str) else value
    model = opennmt.load_model(str(folder), serialize_model=False)
    model.initialize(data, config["params"])
    optimizer = model.get_optimizer()
    checkpoint = opennmt.utils.checkpoint.Checkpoint.from_config(config, model, optimizer)
    checkpoint.restore()
    model.create_variables(optimizer)
    return model, checkpoint


def add_noise(folder, seed=1):
    """Change every weight at random, and write the checkpoint again, without an optimizer."""
    model, checkpoint = opened(folder)
    random = np.random.default_rng(seed)
    for variable in model.variables:
        deviation = 0.02 if variable.shape.rank > 1 else 0.1
        variable.assign_add(random.normal(0, deviation, variable.shape).astype("f"))
    step = checkpoint.last_saved_step + 1
    for path in [*folder.glob("ckpt-*"), folder / "checkpoint"]:
        path.unlink()
    opennmt.utils.checkpoint.Checkpoint(model, model_dir=str(folder)).save(step)
    for path in [*folder.glob("events*"), *folder.glob("*.txt"), *folder.glob("*.pbtxt")]:
        path.unlink()  # for TensorBoard


def answers(folder, sources, targets):
    """Return what OpenNMT-tf makes of sentences: ids, scores and translations."""
    with tempfile.TemporaryDirectory() as name:
        paths = [pathlib.Path(name) / side for side in SIDES]
        for path, lines in zip(paths, (sources, targets), strict=True):
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        model, _ = opened(folder)
        inputter, labels_inputter = model.examples_inputter, model.labels_inputter
        dataset = inputter.make_evaluation_dataset(*map(str, paths), 1)
        # Outside of a graph it would also translate.
        score = tf.function(model.score, input_signature=dataset.element_spec)

        def log_probs(pairs):
            return [-float(score(*pair)["score"][0]) for pair in pairs]

        examples = list(dataset)
        features = [each for each, _ in examples]
        source_ids = [each["ids"][0].numpy().tolist() for each in features]
        found = {"sources": sources, "targets": targets, "source_ids": source_ids}
        found["scores"] = log_probs(examples)
        for key, beam_size, penalty in (("greedy", 1, 0), ("beam", 4, 0), ("beam_0.6", 4, 0.6)):
            model.params.update(beam_width=beam_size, length_penalty=penalty)
            dataset = inputter.make_inference_dataset(str(paths[0]), 1)
            infer = tf.function(model.infer, input_signature=(dataset.element_spec,))
            rows = [infer(each) for each in dataset]
            best = [
                {
                    "tokens": row["tokens"][:, 0, : row["length"][0, 0]],
                    "length": row["length"][:, 0],
                }
                for row in rows
            ]
            tokens = [[token.decode() for token in row["tokens"][0].numpy()] for row in best]
            found[key] = [labels_inputter.tokenizer.detokenize(row) for row in tokens]
            labels = [labels_inputter.make_features(features=row) for row in best]
            found[f"{key}_ids"] = [row["ids"][0, 1:].numpy().tolist() for row in labels]
            # Those of `infer` may be another hypothesis': github.com/OpenNMT/OpenNMT-tf/issues/432
            found[f"{key}_log_probs"] = log_probs(zip(features, labels, strict=True))
    return found


def logits(folder, sources, targets):
    """Return the logits `(B, T, V)` of given translations, padded to the longest."""
    model, _ = opened(folder)
    sides = []
    for inputter, lines in zip(
        (model.features_inputter, model.labels_inputter), (sources, targets), strict=True
    ):
        tokens = tf.ragged.constant([inputter.tokenizer.tokenize(line) for line in lines])
        lengths = tf.cast(tokens.row_lengths(), tf.int32)
        sides.append(
            inputter.make_features(features={"tokens": tokens.to_tensor(), "length": lengths})
        )
    return tf.function(lambda: model(*sides)[0]["logits"])().numpy()


def main(target, *kinds, num_train=6000, num_test=20):
    """Write a folder for each kind of model, or each of `MODELS`, into `target`."""
    lines = gzip.open(PHRASEBOOK, "rt", encoding="utf-8").read().splitlines()
    pairs = [line.split("\t") for line in lines]
    for kind, choices in ((kind, MODELS[kind]) for kind in kinds or MODELS):
        # Their tokenizer takes U+2581 for a space.
        odd_tags = [line for line in ODD_TAGS if "\u2581" not in line]
        odd = ODD if kind != "tagged" else [*ODD, *odd_tags]
        parts = pairs[:num_train], pairs[-num_test:]
        train_pairs, test = map(with_tags, parts) if kind == "tagged" else parts
        test = [*test, *([line, "Good evening!"] for line in odd)]
        sources, targets = map(list, zip(*test, strict=True))
        with tempfile.TemporaryDirectory() as name:
            text, folder = pathlib.Path(name), pathlib.Path(name) / kind
            folder.mkdir()
            columns = zip(*train_pairs, strict=True)
            for side, column in zip(SIDES.values(), columns, strict=True):
                (text / f"train.{side}").write_text("".join(f"{line}\n" for line in column))
            train(folder, text, **choices)
            add_noise(folder)
            np.save(folder / "logits.npy", logits(folder, sources[-2:], targets[-2:]))
            found = answers(folder, sources, targets)
            (folder / "answers.json").write_text(json.dumps(found, ensure_ascii=False))
            shutil.rmtree(target / kind, ignore_errors=True)
            shutil.copytree(folder, target / kind)
    catalog = opennmt.models.catalog
    names = catalog.list_model_names_from_catalog()
    models = {name: catalog.get_model_from_catalog(name) for name in names}
    heads = {
        name: model.decoder.num_heads
        for name, model in models.items()
        if isinstance(model, opennmt.models.Transformer)
    }
    (target / "heads.json").write_text(json.dumps(heads, sort_keys=True))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), *sys.argv[2:])
