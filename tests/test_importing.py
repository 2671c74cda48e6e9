"""Models that Marian and Hugging Face wrote, imported: their answers beside ours.

`dev/write_marian_fixtures.py` and `dev/write_hugging_face_fixtures.py` wrote the files, each in an
environment with the engine.
"""

import functools
import json
import pathlib
import pickle
import re
import shutil
import zipfile

import imports
import numpy as np
import pytest
import tensorflow as tf
from commands import assert_refused, run_here
from imports import change, name_of, remove, stored, translator_of, write
from phrase_models import our_greedy

from tf_transformer.importing import hugging_face_marian
from tf_transformer.importing.hugging_face_marian import read_hugging_face_marian
from tf_transformer.importing.marian import _LOADER, read_marian
from tf_transformer.importing.settings import read_yaml
from tf_transformer.importing.tensors import ForeignModelError, _tensor, read_torch
from tf_transformer.models.architectures import build_model, with_tokenizers
from tf_transformer.runs.restore import restore_model
from tf_transformer.runs.run_directory import RunDirectory

FIXTURES = pathlib.Path(__file__).parent / "fixtures"
KINDS = {
    "marian": ["joint", "separate", "untied", "tagged"],
    "hugging_face": ["shared", "separate", "untied"],
}
ALL = [FIXTURES / engine / kind for engine, kinds in KINDS.items() for kind in kinds]
MARIAN, HUGGING_FACE = ALL[:4], ALL[4:]


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """The runs of all fixtures, imported by the command."""
    return imports.import_all("marian", ALL, tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def opened(imported):
    """`(model, source tokenizer, target tokenizer)` of a fixture, and the engine's answers."""
    return lambda source: (
        restore_model(RunDirectory.open(imported[source]))[:3],
        json.loads((source / "answers.json").read_text("utf-8")),
    )


@pytest.mark.parametrize("source", HUGGING_FACE, ids=name_of)
def test_logits_are_those_of_transformers(source, opened):
    (model, *tokenizers), answers = opened(source)
    ids = [[*row, tokenizers[0].eos_id] for row in tokenizers[0].encode(answers["texts"])]
    source_ids = tf.ragged.constant(ids).to_tensor(model.config.pad_id)
    decoder_ids = np.array(answers["decoder_ids"])
    logits = model({"source_ids": source_ids, "target_ids": decoder_ids}).numpy()
    expected = np.load(source / "logits.npy")
    pad = model.config.pad_id
    assert logits[..., pad].max() < -9000, "never produced"
    is_real = np.roll(decoder_ids != pad, -1, axis=1)
    is_real[:, -1] = True
    np.testing.assert_allclose(
        np.delete(logits, pad, -1)[is_real], np.delete(expected, pad, -1)[is_real], atol=1e-4
    )


@pytest.mark.parametrize("source", HUGGING_FACE, ids=name_of)
def test_ids_are_those_of_marian_tokenizer(source, opened):
    (_, *tokenizers), answers = opened(source)
    for tokenizer, ids in zip(
        tokenizers, (answers["source_ids"], answers["target_ids"]), strict=True
    ):
        expected = [row[:-1] for row in ids]
        assert tokenizer.encode(answers["lines"]) == expected
        assert tokenizer.tokenize(tf.constant(answers["lines"])).to_list() == expected
    texts = tokenizers[1].detokenize(tf.ragged.constant([row[:-1] for row in ids], tf.int32))
    # They decode tags as text.
    decoded = [re.sub("^>>...<< ?", "", text) for text in answers["decoded"]]
    assert [text.decode().strip() for text in texts.numpy()] == decoded


@pytest.mark.parametrize("source", HUGGING_FACE, ids=name_of)
def test_greedy_search_finds_the_ids_of_transformers(source, opened):
    (model, *tokenizers), answers = opened(source)
    found, _ = our_greedy(model, tokenizers[0].encode(answers["lines"]), tokenizers[1])
    assert len({tuple(row) for row in answers["greedy"]}) > 1
    for ours, theirs in zip(found, answers["greedy"], strict=True):
        end = theirs.index(0) if 0 in theirs else len(theirs)
        assert ours[: len(theirs)] == theirs[:end]


def test_the_splitter_reads_tags_that_are_its_symbols(opened):
    """One, several, unknown ones, and in the middle: as Marian's SentencePiece does."""
    (_, *tokenizers), answers = opened(MARIAN[3])
    for tokenizer, side in zip(tokenizers, ("source", "target"), strict=True):
        expected = [ids[:-1] if ids[-1:] == [0] else ids for ids in answers[f"{side}_ids"]]
        assert tokenizer.encode(answers[f"{side}s"]) == expected
        assert tokenizer.tokenize(tf.constant(answers[f"{side}s"])).to_list() == expected


@pytest.mark.parametrize(
    "source",
    [MARIAN[0], *(pytest.param(each, marks=pytest.mark.slow) for each in MARIAN[1:])],
    ids=name_of,
)
def test_scores_and_translations_are_those_of_marian(source, opened, imported):
    (model, *tokenizers), answers = opened(source)
    translator = translator_of(imported[source], model, tokenizers)
    scores = translator.score(answers["sources"], answers["targets"])
    np.testing.assert_allclose([s.log_prob for s in scores], answers["scores"], atol=1e-3)
    for name, beam_size in (("greedy", 1), ("beam", 4)):
        found = translator.n_best(answers["sources"], 1, beam_size=beam_size, length_penalty=0.0)
        # The limit is Marian's own, but here Marian had a longer one.
        ended = [
            (best.text, theirs)
            for (best,), theirs in zip(found, answers[name], strict=True)
            if not best.truncated
        ]
        assert len(ended) >= 0.9 * len(answers[name])
        assert [ours for ours, _ in ended] == [theirs for _, theirs in ended]


@pytest.mark.slow
@pytest.mark.parametrize("source", [MARIAN[3], HUGGING_FACE[0]], ids=name_of)
def test_an_imported_run_is_a_run_like_any_other(source, opened, imported, tmp_path, capfd):
    (model, *tokenizers), answers = opened(source)
    run_dir, lines = imported[source], answers.get("sources", answers.get("lines"))
    lines = [line for line in lines if line.strip()][:4]
    imports.exported(run_dir, lines, tmp_path)
    found, joined = imports.of_ctranslate2(
        run_dir, tokenizers, lines, tmp_path, disable_unk=source in MARIAN
    )
    greedy = translator_of(run_dir, model, tokenizers).n_best(lines, 1)
    for (ours,), theirs in zip(greedy, found, strict=True):
        if not ours.truncated:
            assert joined([piece for piece in theirs if piece != "<unk>"]) == ours.text
    capfd.readouterr()
    resume = ["train", "--run-dir", run_dir, "--resume", "--steps=9"]
    assert_refused(resume, ["no text of its own"], capfd, tmp_path)


# Bad input


def rewritten(**arrays):
    """Gives Marian's weights other arrays, or removes those that are None."""

    def spoil(folder):
        tensors = {**np.load(folder / "model.npz"), **arrays}
        np.savez(folder / "model.npz", **{k: v for k, v in tensors.items() if v is not None})

    return spoil


class Evil:
    def __reduce__(self):
        return (pathlib.Path.touch, (pathlib.Path("evil"),))


def pickled(folder):
    with zipfile.ZipFile(folder / "pytorch_model.bin", "w") as archive:
        archive.writestr("x/data.pkl", pickle.dumps({"weight": Evil()}))


def other_subwords(folder):
    table = json.loads((folder / "vocab.json").read_text("utf-8"))
    table = {key if key[0] == "<" else f"other{key}": index for key, index in table.items()}
    (folder / "vocab.json").write_text(json.dumps(table))


def vocabulary(name, content):
    """Gives Marian's decoder another vocabulary."""

    def spoil(folder):
        write(name, content)(folder)
        change("decoder.yml", "joint.spm", name)(folder)

    return spoil


def setting(before, after):
    """Changes the settings that Marian stores among the weights."""

    def spoil(folder):
        text = np.load(folder / "model.npz")["special:model.yml"].tobytes()
        assert before in text
        text = text.replace(before, after)
        rewritten(**{"special:model.yml": np.frombuffer(text, "int8")})(folder)

    return spoil


WEIGHTS = "model.safetensors"
COPIES = ["lm_head.weight", *hugging_face_marian._EMBEDDINGS.values()]


def with_copy(name, change=0.0):
    """Stores a tied matrix once more, and differently if there is a change."""
    return lambda arrays: arrays.update({name: arrays["model.shared.weight"] + np.float32(change)})


def with_positions(side, sign=1.0):
    """Stores the positions as Hugging Face computes them: in halves, sines first."""
    angles = np.arange(64)[:, None] / 10000 ** (np.arange(8) / 8)
    waves = sign * np.concatenate([np.sin(angles), np.cos(angles)], 1)
    name = f"model.{side}.embed_positions.weight"
    return lambda arrays: arrays.update({name: waves.astype("f4")})


config = functools.partial(change, "config.json")
generation = functools.partial(write, "generation_config.json")
BINARY = bytes([1, *[0] * 99])
BAD = {
    "marian/joint": {
        "no npz": (remove("model.npz"), "model.npz: is missing"),
        "no vocabulary": (remove("joint.spm"), "joint.spm: is missing"),
        "binary": (write("model.npz", BINARY), "a binary model.* -t"),
        "binary alone": (
            lambda f: (remove("decoder.yml", "model.npz")(f), write("model.bin", BINARY)(f)),
            "model.bin: is a binary model"),
        "whole numbers": (rewritten(encoder_l1_ffn_W1=np.zeros((24, 48), "i1")), "is quantised"),
        "no limit": (write("decoder.yml", "max-length-factor: 0"), "factor is 0"),
        "words": (vocabulary("words.yml", "</s>: 0\n<unk>: 1\nHaus: 2\n"), "words.yml: has words"),
        "a list": (vocabulary("words.txt", "</s>\n<unk>\nHaus\n"), "words.txt: a vocabulary of"),
        "factors": (vocabulary("words.fsv", "_lemma\n"), "words.fsv: a vocabulary of"),
        "damaged npz": (write("model.npz", b"PK"), "model.npz: no NumPy"),
        "damaged spm": (write("joint.spm", b"x"), "joint.spm: no Sentence"),
        "pre-norm": (
            setting(b'transformer-preprocess: ""', b"transformer-preprocess: n"),
            "transformer-preprocess is 'n'"),
        "its own gelu": (
            setting(b"ffn-activation: swish", b"ffn-activation: gelu"), "ffn-activation is 'gelu'"),
        "an odd width": (setting(b"dim-emb: 24", b"dim-emb: 23"), "model.npz: "),
        "no text": (write("decoder.yml", b"\xff"), "decoder.yml: is no table"),
        "a plain array": (
            lambda f: np.save((f / "model.npz").open("wb"), np.zeros(3)), "model.npz: no NumPy"),
        "not Marian's": (rewritten(**{"special:model.yml": None}), "Marian did not"),
        "another size": (rewritten(encoder_l1_ffn_W1=np.zeros((24, 7), "f4")), "ffn_.*24, 7"),
        "other rows": (rewritten(Wemb=np.zeros((9, 24), "f4")), "has 9 rows"),
        "a missing weight": (rewritten(encoder_l1_self_Wq=None), "self_Wq"),
        "another weight": (rewritten(extra=np.zeros(3)), "such as extra"),
    },
    "hugging_face/shared": {
        "no weights": (remove("model.safetensors"), "no model.safetensors or"),
        "no splitter": (remove("source.spm"), "source.spm: is missing"),
        "empty splitter": (write("source.spm", b""), "source.spm: no Sent"),
        "no table": (remove("vocab.json"), "vocab.json: is missing"),
        "damaged weights": (write("model.safetensors", b"x" * 99), "no safetensors file"),
        "another family": (config('"marian"', '"bart"'), "model_type is 'bart'"),
        "an activation": (config('"swish"', '"tanh"'), "activation_function"),
        "fewer layers": (
            config('"encoder_layers": 2', '"encoder_layers": 1'), "such as model.encoder.layers.1"),
        "no JSON": (config("{", "["), "no JSON object"),
        "other subwords": (other_subwords, "different models"),
        **{
            f"another {name}": (stored(WEIGHTS, with_copy(name, 1e-3)), f"{name} differs")
            for name in COPIES
        },
        "other positions": (
            stored(WEIGHTS, with_positions("encoder", -1.0)), "embed_positions.* differs"),
        "quantised": (
            stored(WEIGHTS, lambda a: a.update({COPIES[0]: np.zeros((263, 16), "i1")})),
            "the model is quantised|differs"),
        "another padding": (
            generation('{"pad_token_id": 3}'), "pad_token_id is 262 in config.json, but 3"),
        "no id": (generation('{"bad_words_ids": [[99999]]}'), "99999 is no id of the 263"),
        "a word for an id": (generation('{"suppress_tokens": ["a"]}'), "'a' is no id"),
        "a word for a number": (
            config('"max_position_embeddings": 64', '"max_position_embeddings": ""'),
            "max_position_embeddings is ''"),
        "a list": (config('"pad_token_id": 262', '"pad_token_id": [1, 2]'), "special ids"),
        "a subword less": (change("vocab.json", '"<unk>": 1, ', ""), "vocab.json"),
    },
    "hugging_face/separate": {
        "code": (pickled, "pickle asks for pathlib.*touch"),
        "no pickle": (write("pytorch_model.bin", b"x"), "file of PyTorch"),
        "no target table": (remove("target_vocab.json"), "target_vocab.json"),
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "case"), [(name, case) for name, cases in BAD.items() for case in cases]
)
def test_bad_input_is_one_line_and_writes_nothing(name, case, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    imports.assert_import_refused("marian", FIXTURES / name, *BAD[name][case], tmp_path, capfd)


def test_equal_copies_and_positions_are_accepted(tmp_path):
    folder = shutil.copytree(HUGGING_FACE[0], tmp_path / "copies")
    for change_of in (
        *map(with_copy, COPIES),
        with_positions("encoder"),
        with_positions("decoder"),
    ):
        stored("model.safetensors", change_of)(folder)
    found, plain = map(read_hugging_face_marian, (folder, HUGGING_FACE[0]))
    models = [build_model(with_tokenizers(f.config, *f[1:3])) for f in (found, plain)]
    for each, model in zip((found, plain), models, strict=True):
        each.fill(model)
    for ours, theirs in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_of_several_trainings_in_a_folder_one_is_named(tmp_path, capfd):
    """As Marian leaves them with `--keep-best`."""
    folder = shutil.copytree(MARIAN[0], tmp_path / "folder")
    best, last = "model.npz.best-bleu.npz", "model.npz"
    rewritten(decoder_ff_logit_out_b=np.full((1, 400), 7, "f4"))(folder)
    (folder / last).rename(folder / best)
    shutil.copy(MARIAN[0] / last, folder / last)
    (folder / "decoder.yml").rename(folder / f"{last}.decoder.yml")
    text = (folder / f"{last}.decoder.yml").read_text()
    (folder / f"{best}.decoder.yml").write_text(text.replace(last, best))
    arguments = ["import", "marian", folder, "--run-dir", tmp_path / "run"]
    assert_refused(
        arguments, [f"{best}.decoder.yml, {last}.decoder.yml. Name one"], capfd, tmp_path
    )
    for name, value in ((best, 7), (last, None)):
        run_dir = tmp_path / name
        config = folder / f"{name}.decoder.yml"
        done = run_here("import", "marian", folder, "--run-dir", run_dir, "--config", config)
        assert f"Read {config}, {folder / name}, {folder / 'joint.spm'}." in done.stdout
        assert "Not carried over" in done.stdout and "beam-size=12" in done.stdout
        bias = restore_model(RunDirectory.open(run_dir)).model.output_projection.bias.numpy()
        assert bool(bias[0] == 7) is (value == 7)


def test_a_tag_stands_before_every_sentence(imported, opened, tmp_path, capfd):
    source = HUGGING_FACE[0]
    arguments = ["import", "marian", source, "--run-dir", tmp_path / "run", "--tag"]
    for tag in (">>fra<<", "<unk>", "</s>"):
        assert_refused([*arguments, tag], [">>deu<<, >>nld<<"], capfd, tmp_path)
    run_here(*arguments, ">>nld<<")
    (model, *tokenizers), _ = opened(source)
    plain = translator_of(imported[source], model, tokenizers)
    tagged = translator_of(tmp_path / "run", model, tokenizers)
    texts = ["Guten Abend. Wo ist Köln?", "", "Anna"]
    sentences = [">>nld<< Guten Abend.", ">>nld<< Wo ist Köln?", ">>nld<< Anna"]
    first, second, last = plain(sentences)
    assert tagged(texts) == [f"{first} {second}", "", last]
    assert plain(texts)[-1] != last


def test_a_pickle_cannot_reach_beyond_its_numbers(tmp_path):
    good = FIXTURES / "hugging_face/separate/pytorch_model.bin"
    with zipfile.ZipFile(good) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(tmp_path / "short.bin", "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content[:-2] if "/data/" in name else content)
    with pytest.raises(ForeignModelError, match="damaged"):
        read_torch(tmp_path / "short.bin")
    storage = np.zeros(1000, np.float32)
    for view in ((0, (9, 9), (9, -9)), (-5, (3,), (1,)), (999, (2,), (1,))):
        with pytest.raises(ValueError, match="beyond its storage"):
            _tensor(storage, *view)
    assert _tensor(storage, 1, (3, 333), (333, 1)).shape == (3, 333)


def test_yaml_as_marian_writes_it():
    text = '"</s>": 0\n"\\"": 1\n\'it\'\'s\': 2\n▁the: 3\n":": 4\n"\\xA0": 5\nx#y: 6\n'
    text += '? "\\x85"\n: 7\nlist:\n  - a\n  - b\nempty:\n  []\n'
    assert read_yaml("vocab.yml", _LOADER, text) == {
        "</s>": "0", '"': "1", "it's": "2", "▁the": "3", ":": "4", "\xa0": "5", "x#y": "6",
        "\x85": "7", "list": ["a", "b"], "empty": [],
    }  # fmt: skip


def test_a_vocabulary_of_yaml_beside_the_splitters(tmp_path):
    """The form of OPUS-MT: ids in YAML, and a SentencePiece model for each side."""
    shutil.copytree(FIXTURES / "marian/joint", tmp_path / "opus")
    folder, plain = tmp_path / "opus", read_marian(FIXTURES / "marian/joint")
    subwords = plain.source_tokenizer.subwords(range(plain.source_tokenizer.vocab_size - 1))
    lines = [f"{json.dumps(x, ensure_ascii=False)}: {i}\n" for i, x in enumerate(subwords)]
    (folder / "opus.vocab.yml").write_text("".join(lines), encoding="utf-8")
    change("decoder.yml", "joint.spm", "opus.vocab.yml")(folder)
    for side in ("source", "target"):
        shutil.copy(folder / "joint.spm", folder / f"{side}.spm")
    found = read_marian(folder)
    assert found.config == plain.config
    assert found.source_tokenizer.model == plain.source_tokenizer.model


def test_a_limit_of_the_search_and_its_settings(tmp_path):
    """Marian's factor; Hugging Face's settings are those of its own file, if there is one."""
    assert read_marian(MARIAN[0]).max_length_ratio == 3
    folder = shutil.copytree(HUGGING_FACE[0], tmp_path / "folder")
    settings = {"num_beams": 6, "suppress_tokens": [7], "max_length": 512, "do_sample": True}
    settings |= {"length_penalty": 0, "temperature": 1.0, "eos_token_id": [0], "top_k": 50}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    change("config.json", '"bad_words_ids": [', '"bad_words_ids": [[5], ')(folder)
    for name, never in (("generation_config.json", {7, 262}), ("config.json", {5, 262})):
        found = read_hugging_face_marian(folder)
        assert found.max_length_ratio == found.max_length == 64, "no limit for short sources"
        lost = ["num_beams=6, do_sample=True, length_penalty=0."] if "gen" in name else []
        assert found.notes == [f"Not carried over from {folder / name}: {x}" for x in lost]
        model = build_model(with_tokenizers(found.config, *found[1:3]))
        found.fill(model)
        bias = model.output_projection.bias.numpy()
        assert set(np.flatnonzero(bias < -9000)) == never
        (folder / "generation_config.json").unlink(missing_ok=True)
