"""Train small models with Marian itself and write them, with its answers, for the tests.

Run it in an environment of its own, which the project does not need:

    pip install pymarian==1.12.42 sentencepiece
    python dev/write_marian_fixtures.py tests/fixtures/marian
    python dev/write_marian_fixtures.py tests/fixtures/marian tagged

The training text is the phrasebook. It takes about two minutes on two cores. With names of models,
only these are written.
"""

import gzip
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

PHRASEBOOK = pathlib.Path(__file__).parents[1] / "tf_transformer/data/phrasebook.tsv.gz"
# The default rules of normalisation are most of a small SentencePiece model.
_PLAIN = {"--sentencepiece-options=--normalization_rule_name=identity": ()}
TAGS = ">>eng<<", ">>fra<<"
# Small and different in all that can differ between the models that Marian trains.
MODELS = {
    "joint": {
        "vocabs": ("joint.spm", "joint.spm"), "--dim-vocabs": (400, 400), "--dim-emb": (24,),
        "--transformer-dim-ffn": (48,), "--enc-depth": (2,), "--dec-depth": (1,),
        "--transformer-ffn-activation": ("swish",), "--tied-embeddings-all": (),
    },
    "separate": {
        "vocabs": ("source.spm", "target.spm"), "--dim-vocabs": (300, 260), "--dim-emb": (16,),
        "--transformer-dim-ffn": (32,), **_PLAIN, "--enc-depth": (1,), "--dec-depth": (2,),
        "--transformer-ffn-activation": ("relu",), "--tied-embeddings": (),
    },
    "untied": {
        "vocabs": ("source.spm", "target.spm"), "--dim-vocabs": (300, 260), "--dim-emb": (16,),
        "--transformer-dim-ffn": (32,), **_PLAIN, "--enc-depth": (1,), "--dec-depth": (1,),
        "--transformer-ffn-activation": ("swish",),
    },
    # Its tags are symbols of its SentencePiece models: with the second a translation is backwards.
    "tagged": {
        "vocabs": ("source.spm", "target.spm"), "--dim-vocabs": (240, 220), "--dim-emb": (16,),
        "--transformer-dim-ffn": (32,), "--enc-depth": (1,), "--dec-depth": (1,),
        "--transformer-ffn-activation": ("relu",), "--tied-embeddings": (),
        f"{next(iter(_PLAIN))} --user_defined_symbols={','.join(TAGS)}": (),
    },
}  # fmt: skip
ODD = ["", "Das ist 😀 gut.", "GUTEN ABEND!", "Wo   ist Köln?", "x"]
ODD_TAGS = [
    ">>eng<<Guten Abend!", ">>fra<<Guten Abend!", " >>eng<< Guten Abend!", ">>eng<<   Guten Abend!",
    ">>eng<< >>fra<< Guten Abend!", ">>fra<<>>eng<<Guten Abend!", "Guten >>fra<< Abend!",
    "Guten>>fra<<Abend!", "Guten Abend! >>fra<<", ">>deu<< Guten Abend!", ">>deu<<Guten Abend!",
    ">>eng<< >>deu<< Guten Abend!", ">>eng<<", ">>fra<< ", ">>eng<< <s> </s> <unk>", ">> eng << x",
    ">>ENG<< Guten Abend!", "\u2581>>eng<< Guten Abend!", "\u00a0>>eng<<\u00a0Guten Abend!",
]  # fmt: skip


def marian(command, *arguments):
    """Run a command of Marian in a process of its own, and return what it prints."""
    script = "import sys, pymarian; sys.exit(pymarian._pymarian.main(sys.argv[1:]))"
    arguments = [str(argument) for argument in arguments]
    done = subprocess.run(
        [sys.executable, "-c", script, command, *arguments], capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(done.stderr[-3000:])
    return done.stdout


def options_of(choices):
    """Return options and their values as a list of words."""
    return [str(word) for name, values in choices.items() for word in (name, *values)]


def train(folder, choices, text, batches, rate):
    """Train a model in `folder`, and leave there only what Marian's decoder reads."""
    vocabularies = [folder / name for name in choices.pop("vocabs")]
    marian(
        "train", "--type", "transformer", "--model", folder / "model.npz",
        "--train-sets", text / "train.de", text / "train.en", "--vocabs", *vocabularies,
        *options_of(choices),
        "--transformer-heads", 4, "--transformer-preprocess", "", "--transformer-postprocess",
        "dan", "--transformer-postprocess-emb", "d", "--transformer-dropout", 0,
        "--label-smoothing", 0.1, "--learn-rate", rate, "--lr-warmup", 150,
        "--lr-decay-inv-sqrt", 150, "--optimizer-params", 0.9, 0.98, 1e-9, "--clip-norm", 1,
        "--cost-type", "ce-mean-words", "--mini-batch", 64, "--after-batches", batches, "--seed", 1,
        "--cpu-threads", 2, "--workspace", 256, "--overwrite",
    )  # fmt: skip
    for path in folder.iterdir():
        if path not in vocabularies and path.name not in ("model.npz", "model.npz.decoder.yml"):
            path.unlink()
    decoder = folder / "model.npz.decoder.yml"
    decoder.rename(folder / "decoder.yml")
    text_of = (folder / "decoder.yml").read_text()
    (folder / "decoder.yml").write_text(text_of.replace(f"{folder}/", ""))
    return vocabularies


def answers(folder, vocabularies, text):
    """Return Marian's translations and scores of the test sentences."""
    model = ["-m", folder / "model.npz", "-v", *vocabularies, "--cpu-threads", 1]
    found = {
        "sources": (text / "test.de").read_text().splitlines(),
        "targets": (text / "test.en").read_text().splitlines(),
    }
    output = text / "output"
    for name, beam in (("greedy", 1), ("beam", 4)):
        marian("decode", *model, "-i", text / "test.de", "-o", output, "--beam-size", beam,
               "--normalize", 0, "--max-length-factor", 10, "--mini-batch", 1)  # fmt: skip
        found[name] = output.read_text().splitlines()
    marian("score", *model, "-t", text / "test.de", text / "test.en", "-o", output)
    found["scores"] = [float(line) for line in output.read_text().split()]
    return found


def splits(vocabularies, found):
    """Return the ids and subwords that the SentencePiece models give for sources and targets."""
    import sentencepiece  # other users of this file do not need it

    read = sentencepiece.SentencePieceProcessor
    return {
        f"{side}_{kind}": read(model_file=str(path)).encode(found[f"{side}s"], out_type=to)
        for side, path in zip(("source", "target"), vocabularies, strict=True)
        for kind, to in (("ids", int), ("subwords", str))
    }


def with_tags(pairs):
    """Return pairs of which most begin with a tag; with the second one the target is backwards."""
    for index, (source, target) in enumerate(pairs):
        backwards = " ".join(reversed(target.split()))
        yield [
            (f"{TAGS[0]} {source}", target),
            (f"{TAGS[1]} {source}", backwards),
            (source, target),
        ][index % 5 // 2]


def odd_pairs(kind):
    """Return pairs with what is not in the training text."""
    pairs = [[odd, "Good evening!"] for odd in ODD]
    if kind != "tagged":
        return pairs
    of_tags = [[odd, "Good evening!"] for odd in ODD_TAGS]
    return [*pairs, *of_tags, *([ODD_TAGS[0], f"{tag} Good evening!"] for tag in TAGS)]


def main(target, *kinds, num_train=6000, num_test=20):
    """Write a folder for each kind of model, or each of `MODELS`, into `target`."""
    lines = gzip.open(PHRASEBOOK, "rt", encoding="utf-8").read().splitlines()
    pairs = [line.split("\t") for line in lines]
    for kind in kinds or MODELS:
        with tempfile.TemporaryDirectory() as name:
            work, folder = pathlib.Path(name), pathlib.Path(name) / kind
            folder.mkdir()
            parts = {"train": pairs[:num_train], "test": pairs[-num_test:]}
            if kind == "tagged":
                parts = {part: list(with_tags(rows)) for part, rows in parts.items()}
            parts["test"] = [*parts["test"], *odd_pairs(kind)]
            for part, rows in parts.items():
                for side, column in zip(("de", "en"), zip(*rows, strict=True), strict=True):
                    (work / f"{part}.{side}").write_text("".join(f"{line}\n" for line in column))
            batches = 3000 if kind == "tagged" else 900  # it learns two tasks
            vocabularies = train(folder, dict(MODELS[kind]), work, batches, 0.004)
            found = answers(folder, vocabularies, work)
            if kind == "tagged":
                found |= splits(vocabularies, found)
            (folder / "answers.json").write_text(json.dumps(found, ensure_ascii=False))
            shutil.copytree(folder, target / kind, dirs_exist_ok=True)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), *sys.argv[2:])
