"""Models that OpenNMT-tf wrote, imported: its answers beside ours.

`dev/write_opennmt_tf_fixtures.py` wrote the files, in an environment with the engine.
"""

import functools
import json
import pathlib
import re
import shutil

import imports
import numpy as np
import pytest
import tensorflow as tf
from commands import run_here
from imports import change, remove, translator_of, write
from phrase_models import MAX_LENGTH, our_greedy, padded

import tf_transformer as tt
from tf_transformer.data.token_batches import TokenBatches
from tf_transformer.decoding.result import beam_score
from tf_transformer.export.folding import freeze
from tf_transformer.importing import opennmt_tf
from tf_transformer.importing.tensors import _VARIABLE, ForeignModelError, read_checkpoint
from tf_transformer.runs.restore import restore_model
from tf_transformer.runs.run_directory import RunDirectory

FIXTURES = pathlib.Path(__file__).parent / "fixtures/opennmt_tf"
KINDS = ["shared", "separate", "target", "tagged"]


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """The runs of all fixtures, imported by the command."""
    folders = [FIXTURES / kind for kind in KINDS]
    runs = imports.import_all("opennmt-tf", folders, tmp_path_factory.mktemp("runs"))
    return dict(zip(KINDS, runs.values(), strict=True))


@pytest.fixture(scope="module")
def opened(imported):
    """`(model, source tokenizer, target tokenizer)` of a fixture, and the engine's answers."""
    return lambda kind: (
        restore_model(RunDirectory.open(imported[kind]))[:3],
        json.loads((FIXTURES / kind / "answers.json").read_text("utf-8")),
    )


@pytest.mark.parametrize("form", [lambda model: model, lambda model: freeze(model, 512)])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_opennmt_tf(kind, form, opened):
    (model, *tokenizers), answers = opened(kind)
    logits = np.load(FIXTURES / kind / "logits.npy")
    number = len(logits)
    targets = tokenizers[1].encode(answers["targets"][-number:])
    inputs = {
        "source_ids": padded(answers["source_ids"][-number:], 0),
        "target_ids": padded([[1, *ids] for ids in targets], 0),
    }
    found = form(model)(inputs).numpy()
    for row, theirs, ids in zip(found, logits, targets, strict=True):
        length = len(ids) + 1
        np.testing.assert_allclose(row[:length], theirs[:length], atol=2e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_opennmt_tf(kind, opened):
    (model, *tokenizers), answers = opened(kind)
    source, target = tokenizers
    assert (target.pad_id, target.bos_id, target.eos_id) == (0, 1, 2)
    assert target.unk_id == model.config.target_vocab_size - 1, "after the vocabulary's last line"
    ends = [2] if kind == "separate" else []
    assert source.eos_id == (ends or [0])[0]
    ours = source.encode(answers["sources"])
    assert any(source.unk_id in ids for ids in ours)
    assert [[*ids, *ends] for ids in ours] == answers["source_ids"]
    assert source.tokenize(tf.constant(answers["sources"])).to_list() == ours


@pytest.mark.parametrize(
    "kind", [KINDS[0], *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS[1:])]
)
def test_scores_and_translations_are_those_of_opennmt_tf(kind, opened, imported):
    (model, *tokenizers), answers = opened(kind)
    translator = translator_of(imported[kind], model, tokenizers)
    sources = answers["sources"]
    scores = translator.score(sources, answers["targets"])
    np.testing.assert_allclose([s.log_prob for s in scores], answers["scores"], 1e-6, 1e-4)
    source, target = tokenizers
    greedy, _ = our_greedy(model, source.encode(sources), target, source.eos_id)
    assert greedy == [ids[:MAX_LENGTH] for ids in answers["greedy_ids"]]
    for name, beam_size, penalty in (("greedy", 1, 0), ("beam", 4, 0), ("beam_0.6", 4, 0.6)):
        found = translator.n_best(sources, 1, beam_size=beam_size, length_penalty=penalty)
        theirs = [answers[f"{name}{part}"] for part in ("", "_ids", "_log_probs")]
        # Their limit is 250 tokens.
        rows = zip(found, *theirs, strict=True)
        ended = [row for row in rows if not row[0][0].truncated and len(row[2]) < 250]
        num_same = 0
        for (best,), text, ids, log_prob in ended:
            # Their tokenizer keeps a space at the beginning, and writes an unknown subword.
            if (best.text, best.length) == (text.replace("<unk>", "").strip(), len(ids)):
                num_same += 1
                np.testing.assert_allclose(best.log_prob, log_prob, 1e-6, 1e-4)
            else:  # In their beam, ended hypotheses take the places of others.
                assert best.score > beam_score(log_prob, len(ids) + 1, penalty) - 1e-4
        assert num_same >= 20 and (beam_size > 1 or num_same == len(ended))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["separate", "target"])
def test_an_imported_run_is_a_run_like_any_other(kind, opened, imported, tmp_path):
    (_, *tokenizers), answers = opened(kind)
    run_dir, lines = imported[kind], answers["sources"][:4]
    expected = imports.exported(run_dir, lines, tmp_path)
    # An end is added to the subwords only if the model was trained so.
    found, joined = imports.of_ctranslate2(run_dir, tokenizers, lines, tmp_path)
    for theirs, ours in zip(found, expected, strict=True):
        assert joined(theirs)[: len(ours)] == ours


def test_sources_are_batched_as_the_engine_reads_them(opened):
    """So that fine-tuning continues what the engine did."""
    for kind in KINDS:
        (_, *tokenizers), answers = opened(kind)
        pairs = tt.ParallelText(answers["sources"][:3], answers["targets"][:3])
        batches = TokenBatches.from_text(pairs, *tokenizers)
        inputs, labels = batches.batch(np.arange(3))
        for row, ids in zip(inputs["source_ids"], answers["source_ids"], strict=False):
            assert row[: len(ids)].tolist() == ids and not row[len(ids) :].any()
        assert (labels == 2).sum() == 3


def test_the_number_of_heads_is_the_catalogs():
    heads = json.loads((FIXTURES / "heads.json").read_text())
    aliases = {"Transformer"}  # of TransformerBase
    for name, number in opennmt_tf._HEADS.items():
        assert heads["TransformerBase" if name in aliases else name] == number
    others = {*heads} - {*opennmt_tf._HEADS}
    assert all("Relative" in name or "Scaling" in name for name in others), "are refused"


@pytest.mark.parametrize(
    ("description", "expected"),
    [
        ('model = lambda: models.get_model_from_catalog("TransformerBig")', "16 relu 0.1"),
        ("class Mine(Transformer):\n  def __init__(self):\n    super().__init__(num_heads=3)",
         "3 relu 0.1"),
        ("model = lambda: T(ffn_activation=tf.nn.silu, dropout=.3, num_heads=4)", "4 swish 0.3"),
    ],
)  # fmt: skip
def test_descriptions_are_read_and_not_run(description, expected, tmp_path):
    path = tmp_path / "model_description.py"
    path.write_text(f"import opennmt\nraise SystemExit\n{description}\n")
    theirs = opennmt_tf._description(path)
    found = [theirs[name] for name in ("num_heads", "ffn_activation", "dropout")]
    assert found == expected.replace("tf.nn.", "").split()


def test_a_description_of_several_models_is_refused(tmp_path):
    path = tmp_path / "model_description.py"
    path.write_text('names = "TransformerBase", "TransformerBig"\n')
    with pytest.raises(ForeignModelError, match="nor one model of the catalog"):
        opennmt_tf._description(path)


def test_a_model_of_the_catalog_with_files_elsewhere(imported, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(FIXTURES / "shared", folder / "avg")
    for path in (folder / "avg").glob("joint.*"):
        path.rename(folder / path.name)
    (folder / "avg" / "checkpoint").unlink()
    (folder / "avg" / "data.yml").rename(folder / "en_de.yml")
    catalog = 'model = lambda: models.get_model_from_catalog("TransformerBaseSharedEmbeddings")'
    (folder / "avg" / "model_description.py").write_text(catalog)
    config = ["--config", folder / "en_de.yml"]
    run_here("import", "opennmt-tf", folder / "avg", "--run-dir", tmp_path / "new", *config)
    new, old = (
        restore_model(RunDirectory.open(path)).model
        for path in (tmp_path / "new", imported["shared"])
    )
    assert new.config == old.config
    for ours, theirs in zip(new.weights, old.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)


# Bad input


def rewritten(**arrays):
    """Write the checkpoint again with other arrays, or without those that are None."""

    def spoil(folder):
        prefix = tf.train.latest_checkpoint(folder)
        tensors = read_checkpoint(folder)
        named = {name: tensors.take(name) for name in tensors} | arrays
        root = tf.train.Checkpoint(model=tf.Module())
        for name, array in named.items():
            *parents, last = name.split("/")
            node = root.model
            for parent in parents:
                if not hasattr(node, parent):
                    setattr(node, parent, tf.Module())
                node = getattr(node, parent)
            if array is not None:
                setattr(node, last, tf.Variable(array))
        root.write(prefix)

    return spoil


EMBEDDING, QUERIES = opennmt_tf._SOURCE, "encoder/layers/0/self_attention/layer/linear_queries/bias"
describe = functools.partial(change, "model_description.py")
data = functools.partial(change, "data.yml")
BAD = {
    "no checkpoint": (lambda f: [path.unlink() for path in f.glob("ckpt*")], "has 0 checkpoints"),
    "two checkpoints, the latest unknown": (
        lambda f: [(f / "checkpoint").unlink(), (f / "ckpt-1.index").touch()], "has 2 checkpoints"),
    "a damaged checkpoint": (
        lambda f: next(f.glob("*.index")).write_bytes(b"x" * 99), "no checkpoint of TensorFlow"),
    "damaged numbers": (lambda f: next(f.glob("*.data*")).write_bytes(b"x" * 99), "is damaged"),
    "relative positions": (
        rewritten(**{"encoder/layers/0/self_attention/layer/relative_position_keys": np.zeros(3)}),
        "such as encoder.*relative_position_keys"),
    "relative positions by description": (
        describe("num_layers=2", "maximum_relative_position=20"),
        "maximum_relative_position is '20'; only 'None'"),
    "a model of relative positions": (
        write("model_description.py", 'model = m("TransformerBaseRelative")'),
        "neither num_heads.*Relative"),
    "other positions": (
        describe("num_layers=2", "position_encoder_class=None"),
        "position_encoder_class is 'None'"),
    "their gelu": (
        describe("num_layers=2", "ffn_activation=opennmt.layers.gelu"), "ffn_activation: .*gelu"),
    "a number of heads by name": (
        describe("num_heads=8", "num_heads=HEADS"), "num_heads: .*integer"),
    "heads that do not fit": (describe("num_heads=8", "num_heads=5"), "not a multiple"),
    "no number of heads": (describe("    num_heads=8,\n", ""), "neither num_heads"),
    "no description": (remove("model_description.py"), "model_description.py: is missing"),
    "a description that is no Python": (describe("lambda", "lambda lambda"), "is no Python"),
    "a missing weight": (rewritten(**{QUERIES: None}), f"no weights named {QUERIES}"),
    "another size": (rewritten(**{QUERIES: np.zeros(5)}), "37.*needs.*48"),
    "another vocabulary": (rewritten(**{EMBEDDING: np.zeros((9, 16))}), "9, 16.*needs"),
    "no settings": (remove("data.yml"), "0 files .*--config"),
    "no YAML": (write("data.yml", "a: [b"), "no table of settings"),
    "no data": (data("data:", "daten:"), "no source_vocabulary"),
    "no vocabulary": (remove("joint.vocab"), "joint.vocab, which is missing"),
    "no splitter": (remove("joint.model"), "joint.model, which is missing"),
    "no tokenization": (data("source_tok", "x"), "source_tokenization is missing"),
    "another tokenization": (data("mode: none", "mode: aggressive"), "aggressive"),
    "an option of the tokenizer": (
        data("mode: none", "case_markup: true\n    mode: none"), "case_markup"),
    "no begin": (change("joint.vocab", "<s>\n", ""), "must begin with the lines"),
    "a line twice": (change("joint.vocab", "</s>\n", "</s>\n</s>\n"), "each subword once"),
    "a begin in sources": (
        data("data:", "data:\n  source_sequence_controls: {start: true}"),
        "only targets can have a start"),
    "no end in targets": (
        data("data:", "data:\n  sequence_controls: {end: false}"), "must have both"),
    "controls in a row": (
        data("data:", "data:\n  sequence_controls: [start, end]"), "only targets"),
    "no start in targets": (
        data("data:", "data:\n  target_sequence_controls: {end: true}"), "have both"),
    "a damaged splitter": (write("joint.model", b"x"), "joint.model: no Sent"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_writes_nothing(case, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    imports.assert_import_refused("opennmt-tf", FIXTURES / "shared", *BAD[case], tmp_path, capfd)


def test_files_in_the_folder_are_read_wherever_their_names_lead(tmp_path):
    """The folder was copied, and the names lead to a training that went on."""
    there, here = (shutil.copytree(FIXTURES / "shared", tmp_path / name) for name in "ab")
    name = re.search('"(ckpt-[0-9]+)"', (here / "checkpoint").read_text())[1]
    for path in ("checkpoint", "data.yml"):
        for old in (name, "joint.vocab", "joint.model"):
            text = (here / path).read_text()
            (here / path).write_text(re.sub(rf"(\"|: ){old}", rf"\g<1>{there / old}", text))
    assert str(there) in (here / "checkpoint").read_text()
    found = opennmt_tf.read_opennmt_tf(here)
    assert {path.parent for path in found.files} == {here}
    (there / "joint.vocab").write_text("another")
    assert opennmt_tf.read_opennmt_tf(here).source_tokenizer.model == found.source_tokenizer.model
    next(here.glob("*.index")).rename(here / "ckpt-1.index")
    with pytest.raises(ForeignModelError, match=rf"0 checkpoints \({name}.index"):
        opennmt_tf.read_opennmt_tf(here)


def test_the_state_of_an_optimizer_is_no_weight():
    name = "model/decoder/layers/0/attention/0/input_layer_norm/beta"
    path = re.fullmatch(_VARIABLE, f"{name}/.ATTRIBUTES/VARIABLE_VALUE")
    assert f"model/{path[1]}" == name
    for other in (f"{name}/.OPTIMIZER_SLOT/optimizer/m", "optimizer/beta_1", "save_counter"):
        assert not re.fullmatch(_VARIABLE, f"{other}/.ATTRIBUTES/VARIABLE_VALUE")
