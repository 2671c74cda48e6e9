"""BERT models that Hugging Face wrote, imported: its answers beside ours.

`dev/write_bert_fixtures.py` wrote the files in an environment with `transformers`.
"""

import functools
import json
import pathlib
import shutil

import imports
import numpy as np
import pytest
import tensorflow as tf
from commands import assert_refused, run_here
from graph_session import Server
from imports import change, name_of, remove

from tf_transformer.importing.bert import read_bert
from tf_transformer.runs.restore import restore_model
from tf_transformer.runs.run_directory import RunDirectory

FIXTURES = pathlib.Path(__file__).parent / "fixtures"
MASKED, PLAIN = ALL = [FIXTURES / "bert" / kind for kind in ("masked", "plain")]
EACH = pytest.mark.parametrize("source", ALL, ids=name_of)


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """The runs of the fixtures, imported by the command."""
    return imports.import_all("bert", ALL, tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def opened(imported):
    """`(model, tokenizer)` of a fixture, and the answers of Hugging Face."""

    def open_run(source):
        model, tokenizer, *_ = restore_model(RunDirectory.open(imported[source]))
        answers = json.loads((source / "answers.json").read_text("utf-8"))
        return model, tokenizer, answers, np.load(source / "answers.npz")

    return open_run


@EACH
def test_logits_are_berts_under_unilms_mask(source, opened):
    model, tokenizer, answers, arrays = opened(source)
    eos, bos, pad = tokenizer.eos_id, tokenizer.bos_id, tokenizer.pad_id
    sides = [tokenizer.encode(texts) for texts in zip(*answers["pairs"], strict=True)]
    rows = [[*ids, eos] for ids in sides[0]], [[bos, *ids] for ids in sides[1]]
    batch = [tf.ragged.constant(row, tf.int32).to_tensor(pad) for row in rows]
    logits = model(batch).numpy()
    for number, ids in enumerate(rows[1]):
        np.testing.assert_allclose(
            logits[number, : len(ids)], arrays[f"logits_{number}"], atol=1e-4
        )


@EACH
def test_ids_are_those_of_bert_tokenizer(source, opened):
    _, tokenizer, answers, _ = opened(source)
    assert tokenizer.encode(answers["lines"]) == answers["ids"]
    known = [i for row in answers["ids"] for i in row if i != tokenizer.unk_id]
    assert len(known) > 300 and len(set(known)) > 100


@pytest.mark.slow
def test_an_imported_run_is_a_run_like_any_other(imported, tmp_path):
    lines = ["Guten Abend, Anna!", "café", "世界 Köln", "😀"]
    expected = imports.exported(imported[MASKED], lines, tmp_path)
    assert len(set(expected)) == len(lines)
    server = Server(str(tmp_path / "saved/1"))
    assert server.run("serving_default", lines) == {"translation": expected}
    assert {"translate_nbest", "score", "align"} < server.signatures.keys()


def test_rows_without_a_subword_are_dropped(tmp_path):
    """Some models have more rows than subwords, up to a multiple of 8."""
    shutil.copytree(MASKED, tmp_path / "bert")
    vocabulary = tmp_path / "bert" / "vocab.txt"
    lines = vocabulary.read_text("utf-8").splitlines(keepends=True)
    vocabulary.write_text("".join(lines[:-3]), encoding="utf-8")
    run_here("import", "bert", tmp_path / "bert", "--run-dir", tmp_path / "run")
    model, *_ = restore_model(RunDirectory.open(tmp_path / "run"))
    assert model.config.target_vocab_size == len(lines) - 3


setting = functools.partial(change, "config.json")
BAD = {
    "no configuration": (remove("config.json"), "config.json: is missing"),
    "no vocabulary": (remove("vocab.txt"), "vocab.txt: is missing"),
    "no tokenizer": (remove("tokenizer_config.json"), "tokenizer_config.json: is missing"),
    "another family": (setting('"bert"', '"roberta"'), "model_type is 'roberta'"),
    "another family without weights": (
        lambda f: (setting('"bert"', '"roberta"')(f), remove("model.safetensors")(f)),
        "model_type is 'roberta'"),
    "another gelu": (setting('"gelu"', '"gelu_new"'), "hidden_act"),
    "one segment": (setting('"type_vocab_size": 2', '"type_vocab_size": 1'), "size is 1;"),
    "a decoder": (setting('"is_decoder": false', '"is_decoder": true'), "is_decoder is True"),
    "no width": (setting('"hidden_size": 16,', ""), "lacks the setting 'hidden_size'"),
    "fewer layers": (
        setting('"num_hidden_layers": 2', '"num_hidden_layers": 1'),
        "such as bert.encoder.layer.1"),
    "no end": (change("vocab.txt", "[SEP]", "[END]"), r"no subword \[SEP\]"),
    "a subword twice": (change("vocab.txt", "[MASK]\n", "[MASK]\n[CLS]\n"), "twice"),
    "more subwords": (change("vocab.txt", "[MASK]\n", "[MASK]\nmore\n"), "word_embeddings.* size"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_writes_nothing(case, tmp_path, capfd):
    imports.assert_import_refused("bert", MASKED, *BAD[case], tmp_path, capfd)


def test_an_imported_bert_is_no_model_of_ctranslate2(imported, tmp_path, capfd):
    run, *_ = imported.values()
    command = ["export", run, tmp_path / "saved", "--format=ctranslate2"]
    assert_refused(command, ["this model is a PrefixLanguageModel"], capfd, tmp_path)


def test_a_source_and_a_target_of_the_largest_length_have_positions(opened):
    model, *_ = opened(MASKED)
    longest = read_bert(MASKED).max_length
    source = np.full((1, longest), 9)
    target = np.full((1, longest + 1), 9)
    assert model.config.num_positions(longest) == model.config.position_limit == 41
    assert np.isfinite(model((source, target))).all()
    cache = model.start_decoding(source)
    assert np.isfinite(model.decode_step(target[:, -1], longest, cache)[0]).all()
    with pytest.raises(Exception, match="41"):
        model.decode_step(target[:, -1], longest + 1, cache)
