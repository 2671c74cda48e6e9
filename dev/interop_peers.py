"""Train and ask another engine, in an environment of its own: see `interop.py`.

    PYTHON dev/interop_peers.py marian TEXT FOLDER
    PYTHON dev/interop_peers.py opennmt-tf TEXT FOLDER
    PYTHON dev/interop_peers.py hugging-face TEXT FOLDER MARIAN_FOLDER
    PYTHON dev/interop_peers.py tokens TEXT FOLDER

A folder gets the files that are imported, and `answers.json`. TEXT is a folder of `train.de`,
`train.en`, `test.de` and `test.en`, whatever their languages are.
"""

import json
import pathlib
import random
import shutil
import sys

import numpy as np

MARIAN = {
    "vocabs": ("joint.spm", "joint.spm"), "--dim-vocabs": (1200, 1200), "--dim-emb": (96,),
    "--transformer-dim-ffn": (256,), "--enc-depth": (3,), "--dec-depth": (2,),
    "--transformer-ffn-activation": ("swish",), "--tied-embeddings-all": (),
}  # fmt: skip
OPENNMT_TF = {
    "sizes": [1200], "data": {}, "model": {
        "num_layers": (3, 2), "num_units": 96, "num_heads": 4, "ffn_inner_dim": 256,
        "share_embeddings": 3,
    },
}  # fmt: skip
LETTERS = {
    "Latin": "abcdefghijklmnopqrstuvwxyzäöüßéèñçøåłşğ", "Greek": "αβγδεζηθικλμνξοπρστυφχψωάέή",
    "Cyrillic": "абвгдежзийклмнопрстуфхцчшщыьэюяїєў", "Arabic": "ابتثجحخدذرزسشصضطظعغفقكلمنهوي",
    "Hebrew": "אבגדהוזחטיכלמנסעפצקרשת", "Devanagari": "अआइउएकखगचजटडतदनपबमयरलवशसह",
    "Thai": "กขคงจชซญดตถทนบปพมยรลวสหอ", "Han": "的一是不了人我在有他这为之大来以个中上们",
    "Kana": "あいうえおかきくけこさしすせそアイウエオカキ", "Hangul": "가나다라마바사아자차",
}  # fmt: skip
ODD = [
    " ", "  ", "\u00a0", ", ", ". ", "! ", " – ", " „", "“ ", "12", "３４", "ﬁ", "😀", "e\u0301",
    "\u200b",
]  # fmt: skip


def lines_of_scripts(count, seed=1):
    """Return lines of made-up words in several scripts, with tags, digits, marks and odd spaces."""
    choose = random.Random(seed)
    words = {
        script: ["".join(choose.choices(letters, k=choose.randint(1, 7))) for _ in range(80)]
        for script, letters in LETTERS.items()
    }

    def line():
        scripts = choose.choices(list(words), k=choose.choice((1, 1, 2)))
        found = [choose.choice(words[choose.choice(scripts)]) for _ in range(choose.randint(1, 12))]
        found = [choose.choice((word, word, word.title(), word.upper())) for word in found]
        joined = "".join(
            word + (choose.choice(ODD) if choose.random() < 0.2 else " ") for word in found
        )
        return choose.choice(("", "", "", ">>deu<< ", ">>nld<<")) + joined.rstrip("\n")

    return [line() for _ in range(count)]


def lines_of(path):
    """Return the lines of a file."""
    return path.read_text(encoding="utf-8").splitlines()


def marian(text, folder):
    """Train with Marian, and return what it makes of the test sentences."""
    import write_marian_fixtures as engine

    vocabularies = engine.train(folder, dict(MARIAN), text, 1500, 0.0015)
    return engine.answers(folder, vocabularies, text)


def opennmt_tf(text, folder):
    """Train with OpenNMT-tf, and return what it makes of the test sentences."""
    import write_opennmt_tf_fixtures as engine

    engine.train(folder, text, **OPENNMT_TF, steps=2500)
    return engine.answers(folder, lines_of(text / "test.de"), lines_of(text / "test.en"))


def hugging_face(text, folder, marian_folder):
    """Convert a model of Marian with Hugging Face's converter, and return what that makes of it."""
    import torch
    from sentencepiece import SentencePieceProcessor
    from transformers import MarianMTModel, MarianTokenizer
    from transformers.models.marian.convert_marian_to_pytorch import convert

    original = folder / "original"  # the files as OPUS publishes them
    original.mkdir()
    arrays = dict(np.load(marian_folder / "model.npz"))
    # The converter expects one NUL after the settings; Marian writes more today.
    settings = arrays["special:model.yml"].tobytes().rstrip(b"\0") + b"\0"
    np.savez(
        original / "model.npz", **{**arrays, "special:model.yml": np.frombuffer(settings, "i1")}
    )
    shutil.copy(marian_folder / "decoder.yml", original)
    for name in ("source.spm", "target.spm"):
        shutil.copy(marian_folder / "joint.spm", original / name)
    splitter = SentencePieceProcessor(model_file=str(original / "source.spm"))
    rows = (f"{json.dumps(splitter.id_to_piece(i))}: {i}\n" for i in range(splitter.vocab_size()))
    (original / "opus.vocab.yml").write_text("".join(rows), encoding="utf-8")
    convert(original, folder)

    model = MarianMTModel.from_pretrained(folder, torch_dtype=torch.float32).eval()
    tokenizer = MarianTokenizer.from_pretrained(folder)
    found = {"sources": lines_of(text / "test.de"), "targets": lines_of(text / "test.en")}
    found |= {"greedy": [], "beam": [], "scores": []}
    searches = {"greedy": {"num_beams": 1}, "beam": {"num_beams": 4, "length_penalty": 0.0}}
    with torch.no_grad():
        for source, target in zip(found["sources"], found["targets"], strict=True):
            inputs = tokenizer([source], text_target=[target], return_tensors="pt")
            labels = inputs.pop("labels")
            for name, search in searches.items():
                ids = model.generate(
                    **inputs, **search, max_new_tokens=90, do_sample=False, early_stopping=False,
                    forced_eos_token_id=None, renormalize_logits=True,
                )  # fmt: skip
                found[name] += tokenizer.batch_decode(ids, skip_special_tokens=True)
            logits = model(**inputs, labels=labels).logits
            logits[..., model.config.pad_token_id] = -torch.inf  # is never produced
            log_probs = logits.log_softmax(-1).gather(2, labels[..., None])
            found["scores"].append(float(log_probs.sum()))
    return found


def tokens(_, folder):
    """Write a random model with vocabularies of several scripts; return ids of 1,000 lines."""
    import torch
    import write_hugging_face_fixtures as engine
    from transformers import MarianTokenizer

    lines, other = lines_of_scripts(3000), lines_of_scripts(3000, seed=2)
    pairs = list(zip(lines, other, strict=True))
    # As OPUS' models are: normalised by SentencePiece.
    subwords = engine.splitters(pairs, folder, 2000, "nmt_nfkc")
    size = engine.write_tables(folder, subwords, shares=True)
    with torch.no_grad():
        model = engine.random_model(engine.MODELS["shared"], size, seed=1)
    engine.save("shared", model, folder)
    (folder / "config.json").write_text(json.dumps(model.config.to_dict()))
    paths = (str(folder / name) for name in ("source.spm", "target.spm", "vocab.json"))
    tokenizer, lines = MarianTokenizer(*paths), lines_of_scripts(1000, seed=3)
    return {
        "lines": lines,
        "source_ids": tokenizer(lines)["input_ids"],
        "target_ids": tokenizer(text_target=lines)["input_ids"],
    }


PEERS = {
    "marian": marian, "opennmt-tf": opennmt_tf, "hugging-face": hugging_face, "tokens": tokens
}  # fmt: skip


def main(engine, text, folder, *others):
    """Write what an engine answers."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    found = PEERS[engine](pathlib.Path(text), folder, *map(pathlib.Path, others))
    (folder / "answers.json").write_text(json.dumps(found, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
