"""Tests of the configuration: accepted values, and the errors of others."""

import dataclasses

import pytest
from configurations import TABLES, TEXT, TSV, refusal

from tf_transformer.config import DataConfig, RunConfig, TokenizerConfig, TrainingConfig
from tf_transformer.errors import ConfigError, did_you_mean
from tf_transformer.models.architectures import preset
from tf_transformer.models.configs import TransformerConfig

OPTIONS = [
    pytest.param(table, field, id=f"{table}.{field.name}")
    for table, fields in TABLES.items()
    for field in fields
]


@pytest.mark.parametrize(
    ("tables", "unknown", "meant"),
    [
        ({"trainning": {}}, "[trainning]", "training"),
        ({"Data": {}}, "[Data]", "data"),
        ({"data": {"corpus": "copy", "max_lenght": 3}}, "'max_lenght'", "max_length"),
        ({"tokenizer": {"vocabsize": 300}}, "'vocabsize'", "vocab_size"),
        ({"model": {"dropout": 0.1}}, "'dropout'", "dropout_rate"),
        ({"training": {"step": 3}}, "'step'", "steps"),
    ],
)
def test_an_unknown_name_gets_the_nearest_known_one(tables, unknown, meant):
    message = refusal(RunConfig.from_dict, tables, "run.toml")
    assert message.startswith("run.toml: ")
    assert unknown in message
    assert message.endswith(f"did you mean {meant!r}?")


def test_a_name_like_none_gets_all_of_them():
    message = refusal(RunConfig.from_dict, {"qqqq": {}})
    assert message.endswith("known are chosen, data, model, tokenizer, training.")
    assert did_you_mean("qqqq", ["b", "a"]) == "known are a, b."


def test_a_value_where_a_table_belongs_is_refused():
    assert "write [data]" in refusal(RunConfig.from_dict, {"data": 3})


# A value of each TOML type, and the annotations that accept it.
VALUES = [
    (True, {bool}),
    (3, {int, float}),
    (3.5, {float}),
    ("x", {str}),
    ([3], set()),
    ({"a": 3}, set()),
]


# The types each annotation stands for, spelled out here and not computed as the code does it.
KINDS = {
    str: {str},
    str | None: {str},
    int: {int},
    int | None: {int},
    float: {float},
    float | None: {float},
    bool: {bool},
    bool | None: {bool},
}


@pytest.mark.parametrize(("table", "field"), OPTIONS)
def test_only_values_of_the_right_type_are_accepted(table, field):
    (kind,) = KINDS[field.type]
    for value, accepted_as in VALUES:
        tables = {"data": {"corpus": "copy"}}
        tables.setdefault(table, {})[field.name] = value
        try:
            RunConfig.from_dict(tables)
            message = ""
        except ConfigError as error:
            message = str(error)
        if kind in accepted_as:
            assert "must be " + kind.__name__ not in message
        else:
            assert f"[{table}] {field.name} must be {kind.__name__}; received {value!r}" in message


def test_an_int_is_a_float_where_a_float_is_due():
    config = RunConfig.from_dict(
        {"data": {"corpus": "copy"}, "training": {"minutes": 3}, "model": {"dropout_rate": 0}}
    )
    assert (type(config.training.minutes), config.training.minutes) == (float, 3.0)
    assert (type(config.model.dropout_rate), config.model.dropout_rate) == (float, 0.0)


@pytest.mark.parametrize("value", [True, False])
def test_a_bool_is_no_number(value):
    for table, key in (("data", "max_length"), ("training", "minutes"), ("training", "steps")):
        tables = {"data": {"corpus": "copy"}}
        tables.setdefault(table, {})[key] = value
        assert f"{key} must be" in refusal(RunConfig.from_dict, tables)


@pytest.mark.parametrize(("table", "field"), OPTIONS)
def test_every_setting_has_a_help_text(table, field):
    text = field.metadata["help"]
    assert isinstance(text, str) and len(text.split()) >= 2
    assert not text.endswith(".") and text == text.strip()


# --- Values ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "name"),
    [
        (DataConfig, "batch_tokens"),
        *[
            (TrainingConfig, name)
            for name in (
                "steps",
                "epochs",
                "minutes",
                "learning_rate",
                "warmup_steps",
                "validation_steps",
            )
        ],
        *[
            (TransformerConfig, name)
            for name in (
                "source_vocab_size",
                "target_vocab_size",
                "num_layers",
                "d_model",
                "num_heads",
                "d_ff",
            )
        ],
    ],
)
@pytest.mark.parametrize("value", [0, -1])
def test_a_number_that_must_be_positive(section, name, value):
    arguments = {
        DataConfig: {"corpus": "copy"},
        TransformerConfig: {"source_vocab_size": 300, "target_vocab_size": 300},
    }.get(section, {})
    message = refusal(section, **{**arguments, name: value})
    assert message == f"{name} must be greater than 0; received {name}={value}."


@pytest.mark.parametrize(
    ("section", "name"),
    [
        (TrainingConfig, "label_smoothing"),
        (TransformerConfig, "dropout_rate"),
        (TransformerConfig, "attention_dropout_rate"),
    ],
)
def test_a_rate_is_at_least_0_and_less_than_1(section, name):
    sizes = {"source_vocab_size": 300, "target_vocab_size": 300}
    arguments = sizes if section is TransformerConfig else {}
    for value in (-0.1, 1.0, 1.5, float("nan"), float("inf")):
        message = refusal(section, **arguments, **{name: value})
        assert message.startswith(f"{name} must be at least 0 and less than 1; received {name}=")
    for value in (0.0, 0.5, 0.999):
        assert getattr(section(**arguments, **{name: value}), name) == value


@pytest.mark.parametrize("value", [-1, 2**31])
def test_a_seed_out_of_range(value):
    assert refusal(TrainingConfig, seed=value).startswith("seed must be at least 0")
    assert TrainingConfig(seed=2**31 - 1).seed == 2**31 - 1


@pytest.mark.parametrize("value", [-1, 0, 1])
def test_a_sentence_has_at_least_a_subword_and_its_end(value):
    message = refusal(DataConfig, corpus="copy", max_length=value)
    assert message == f"max_length must be 2 or more; received max_length={value}."
    assert DataConfig(corpus="copy", max_length=2).max_length == 2


def test_a_sentence_must_fit_a_batch():
    message = refusal(DataConfig, corpus="copy", max_length=101, batch_tokens=100)
    assert "max_length must be at most batch_tokens=100" in message
    assert "received max_length=101" in message
    assert DataConfig(corpus="copy", max_length=100, batch_tokens=100).max_length == 100


@pytest.mark.parametrize(
    ("lengths", "named"),
    [
        ({"steps": 1, "epochs": 1}, "--steps and --epochs"),
        ({"steps": 1, "minutes": 1.0}, "--steps and --minutes"),
        ({"epochs": 1, "minutes": 1.0}, "--epochs and --minutes"),
        ({"steps": 1, "epochs": 1, "minutes": 1.0}, "--steps and --epochs and --minutes"),
    ],
)
def test_two_lengths_of_training_conflict(lengths, named):
    assert refusal(TrainingConfig, **lengths).startswith(f"{named} each set when training ends")
    for name, value in lengths.items():
        assert getattr(TrainingConfig(**{name: value}), name) == value


@pytest.mark.parametrize(
    ("corpus", "files", "missing"),
    [
        *[("text", TEXT, name) for name in TEXT],
        ("tsv", TSV, "train_tsv"),
    ],
)
def test_a_missing_file_is_named_as_an_option(corpus, files, missing):
    given_files = {name: path for name, path in files.items() if name != missing}
    message = refusal(DataConfig, corpus=corpus, **given_files)
    assert message.startswith(f"missing --{missing.replace('_', '-')}. ")


@pytest.mark.parametrize(
    ("corpus", "named"),
    [(None, "--train-source, --train-target. "), ("text", "--train-source, --train-target. "),
     ("tsv", "--train-tsv. ")],
)  # fmt: skip
def test_a_corpus_without_files_names_those_of_its_training_text(corpus, named):
    assert refusal(DataConfig, corpus=corpus).startswith(f"missing {named}Give these files")


@pytest.mark.parametrize("missing", ["validation_source", "validation_target"])
def test_one_validation_file_of_two_may_be_omitted_with_the_other(missing):
    without = {name: path for name, path in TEXT.items() if name != missing}
    message = refusal(DataConfig, **without)
    assert "Give --validation-source and --validation-target, or neither" in message


@pytest.mark.parametrize(("corpus", "files"), [("text", TEXT), ("tsv", TSV)])
def test_the_files_say_which_corpus_it_is(corpus, files):
    training = {name: path for name, path in files.items() if name.startswith("train")}
    for given_files, has_validation_files in ((files, True), (training, False)):
        for config in (DataConfig(**given_files), DataConfig(corpus=corpus, **given_files)):
            assert config.corpus == corpus
            assert config.has_validation_files == has_validation_files


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({**TEXT, **TSV}, "--train-tsv has no use with the corpus 'text'"),
        ({"corpus": "text", "train_tsv": "x"}, "--train-tsv has no use with the corpus 'text'"),
        ({"train_tsv": "x", "validation_source": "y"}, "--validation-source has no use with"),
        ({"validation_tsv": "x"}, "missing --train-tsv. "),
    ],
)
def test_files_of_two_corpora_clash(files, named):
    assert refusal(DataConfig, **files).startswith(named)


@pytest.mark.parametrize(
    ("corpus", "files", "superfluous"),
    [
        *[("tsv", TSV, name) for name in TEXT],
        *[("text", TEXT, name) for name in TSV],
        *[(corpus, {}, name) for corpus in ("copy", "phrasebook") for name in (*TEXT, *TSV)],
        ("tfds:x", {}, "train_tsv"),
    ],
)
def test_a_file_that_the_corpus_does_not_read_is_refused(corpus, files, superfluous):
    message = refusal(DataConfig, corpus=corpus, **files, **{superfluous: "x"})
    option = superfluous.replace("_", "-")
    assert message.startswith(f"--{option} has no use with the corpus {corpus!r}")


@pytest.mark.parametrize(
    ("build", "meant"),
    [
        (lambda: DataConfig(corpus="phrasebok"), "phrasebook"),
        (lambda: DataConfig(corpus="revers"), "reverse"),
        (lambda: TokenizerConfig(model_type="bpee"), "bpe"),
        (lambda: TokenizerConfig(model_type="unigramm"), "unigram"),
        (lambda: TrainingConfig(precision="float23"), "float32"),
        (lambda: TrainingConfig(precision="bfloat16"), "mixed_bfloat16"),
        (lambda: preset("tyni", 300, 300), "tiny"),
        (lambda: preset("bas", 300, 300), "base"),
        (lambda: RunConfig.from_dict({"model": {"preset": "bigg"}}), "big"),
        (lambda: RunConfig.from_dict({"model": {"architecture": "transfomer"}}), "transformer"),
    ],
)
def test_an_unknown_choice_gets_the_nearest_known_one(build, meant):
    assert refusal(build).endswith(f"did you mean {meant!r}?")


@pytest.mark.parametrize("value", [0, 4, 256, 260])
def test_a_vocabulary_holds_more_than_its_bytes_and_special_ids(value):
    assert "vocab_size must be more than 260" in refusal(TokenizerConfig, vocab_size=value)
    assert TokenizerConfig(vocab_size=261).vocab_size == 261


def test_a_bad_value_in_a_table_names_file_table_and_key():
    tables = {"data": {"corpus": "copy"}, "training": {"warmup_steps": 0}}
    assert refusal(RunConfig.from_dict, tables, "my.toml") == (
        "my.toml: [training] warmup_steps must be greater than 0; received warmup_steps=0."
    )


def test_configurations_cannot_be_changed():
    config = RunConfig(DataConfig(corpus="copy"))
    for holder, name in ((config, "data"), (config.data, "corpus"), (config.training, "seed")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(holder, name, None)
