"""The configuration of a run: accepted values, refusals of one line, and the TOML file."""

import dataclasses

import pytest
from commands import refusal
from hypothesis import given
from hypothesis import strategies as st

from tf_transformer.config_fields import Trait
from tf_transformer.models.architectures import ARCHITECTURES, preset
from tf_transformer.models.model_configs import TransformerConfig
from tf_transformer.run_config import SETTINGS, RunConfig, merge, names_with, read_toml
from tf_transformer.run_tables import DataConfig, TokenizerConfig, TrainingConfig

COPY = {"data": {"corpus": "copy"}}
TEXT = {
    "train_source": "a.de",
    "train_target": "a.en",
    "validation_source": "b.de",
    "validation_target": "b.en",
}
TSV = {"train_tsv": "a.tsv", "validation_tsv": "b.tsv"}


def test_missing_settings_have_their_defaults():
    config = RunConfig.from_dict({**COPY, "training": {"steps": 5}})
    assert config == RunConfig(
        DataConfig(corpus="copy"),
        TokenizerConfig(),
        # These two are chosen for the corpus.
        dataclasses.replace(preset("tiny"), dropout_rate=None, attention_dropout_rate=None),
        TrainingConfig(steps=5),
    )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_setting_of_an_architecture_is_a_key_of_its_table(architecture):
    config = RunConfig.from_dict({**COPY, "model": {"architecture": architecture}})
    names = {key.removeprefix("model.") for key in config.settings() if key.startswith("model.")}
    assert names <= SETTINGS["model"].keys()
    assert config.architecture == architecture
    assert RunConfig.from_dict(config.to_dict()) == config


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"trainning": {}}, ["trainning", "training"]),
        ({"data": {"max_lenght": 3}}, ["[data]", "max_lenght", "max_length"]),
        ({"model": {"num_units": 8}}, ["[model]", "num_units", "cho, bahdanau"]),
        ({"model": {"preset": "tniy"}}, ["[model]", "tniy", "tiny"]),
        ({"training": {"steps": True}}, ["[training] steps", "true or false"]),
        ({"data": {"weight": [True, 2.0]}}, ["[data] weight", "true or false"]),
        ({"model": {"d_model": True}}, ["[model] d_model", "true or false"]),
        ({"model": {"architecture": "transfomer"}}, ["[model]", "transfomer", "transformer"]),
        ({"model": {"d_model": 30, "num_heads": 4}}, ["[model]", "d_model=30", "num_heads=4"]),
        ({"model": {"tie_embeddings": True}, "tokenizer": {"joint": False}}, ["tie_embeddings"]),
        ({"model": {"positions": "learned", "max_positions": 128}}, ["max_positions=129"]),
        ({"model": {"architecture": "prefix_lm", "positions": "learned", "max_positions": 256}},
         ["max_positions=257"]),
        ({"data": {"max_length": 101, "batch_tokens": 100}}, ["=101", "batch_tokens=100"]),
        ({"data": {"row_length": 99, "max_length": 100}}, ["row_length=99", "max_length=100"]),
        ({"data": {"row_length": 400, "batch_tokens": 300}}, ["row_length=400", "tokens=300"]),
        ({"data": {"row_length": 256}, "model": {"architecture": "cho"}},
         ["row_length packs no rows for cho"]),
        ({"data": {"row_length": 256},
          "model": {"architecture": "prefix_lm", "begin_source": True}},
         ["row_length packs no rows for prefix_lm with begin_source"]),
        ({"data": {"corpus": "phrasebok"}}, ["[data]", "phrasebok", "phrasebook"]),
        ({"data": {"corpus": "monolingual", "train_text": "x"}},
         ["architecture transformer", "--architecture: causal_lm, permutation_lm"]),
        ({"data": {"corpus": "monolingual", "train_text": "x"},
          "model": {"architecture": "causal_lm"}, "tokenizer": {"joint": False}},
         ["--no-joint needs text of two sides"]),
        ({"data": {"corpus": "monolingual", "train_text": "x", "source_noise": 0.1},
          "model": {"architecture": "causal_lm"}}, ["source_noise changes sources"]),
        ({"data": {"corpus": "text", "train_tsv": "x"}}, ["--train-tsv", "'text'"]),
        ({"data": {"train_tsv": "x", "validation_source": "y"}}, ["--validation-source"]),
        ({"data": {"corpus": "copy", "train_source": "x"}}, ["--train-source", "'copy'"]),
        ({"data": {"corpus": None}}, ["--train-source, --train-target", "phrasebook"]),
        ({"data": {"train_source": "x"}}, ["missing --train-target"]),
        ({"training": {"train_source": "x"}}, ["train_source", "unknown"]),
        ({"data": {k: v for k, v in TEXT.items() if k != "validation_source"}}, ["or neither"]),
        ({"training": {"steps": 1, "epochs": 1}}, ["--steps and --epochs"]),
        ({"chosen": {"training.steps": 3}}, ["training.steps"]),
    ],
)  # fmt: skip
def test_a_refusal_is_one_line_that_names_the_setting(tables, words):
    merged = {**COPY, **tables}
    if "data" in tables and not {"corpus", *TEXT, *TSV} & set(tables["data"]):
        merged["data"] = {**COPY["data"], **tables["data"]}
    message = refusal(RunConfig.from_dict, merged, "run.toml")
    assert message.startswith("run.toml: ")
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("data.batch_tokens", [128, 4096], [0, -1, "x"]),
        ("tokenizer.vocab_size", [261], [260, 0]),
        ("tokenizer.character_coverage", [0.5, 1], [0, 1.1]),
        ("model.dropout_rate", [0, 0.999], [1, -0.1, float("nan"), float("inf")]),
        ("training.minutes", [0.1, 3], [0, -1, float("nan"), float("inf")]),
        ("training.weight_decay", [0, 0.1, 1], [-1, 1.1, float("nan")]),
        ("training.seed", [0, 2**31 - 1], [-1, 2**31]),
        ("training.tensorboard", [True], ["maybe"]),
    ],
)
def test_a_value_out_of_range_is_named(name, good, bad):
    table, key = name.split(".")
    for value in good:
        config = RunConfig.from_dict(merge(COPY, {table: {key: value}}))
        assert config.settings()[name] == value
    for value in bad:
        message = refusal(RunConfig.from_dict, merge(COPY, {table: {key: value}}), "run.toml")
        assert message.startswith(f"run.toml: [{table}] {key}")
        assert repr(value) in message


@pytest.mark.parametrize(("corpus", "files"), [("text", TEXT), ("tsv", TSV)])
def test_the_files_say_which_corpus_it_is(corpus, files):
    training = {name: path for name, path in files.items() if name.startswith("train")}
    for given_files, has_validation_files in ((files, True), (training, False)):
        for config in (DataConfig(**given_files), DataConfig(corpus=corpus, **given_files)):
            assert config.corpus == corpus
            assert config.has_validation_files == has_validation_files


def maybe(strategy):
    return st.none() | strategy


rates = st.floats(0, 1, exclude_max=True, allow_subnormal=False)
# Whatever a file name may hold; a lone surrogate is no Unicode, so no TOML file can hold it.
paths = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
widths, minutes = st.integers(1, 100).map(lambda width: 16 * width), st.floats(1e-3, 1e6)
run_configs = st.builds(
    RunConfig,
    st.builds(
        DataConfig, train_source=paths, train_target=paths, source_noise=maybe(rates),
        fold_capitals=maybe(st.booleans()),
    ),
    st.builds(TokenizerConfig, vocab_size=maybe(st.integers(261, 10**6))),
    st.builds(
        TransformerConfig, d_model=widths, dropout_rate=maybe(rates), tie_embeddings=st.booleans()
    ),
    st.builds(TrainingConfig, minutes=maybe(minutes), label_smoothing=rates),
    chosen=st.dictionaries(paths, paths, max_size=2),
)  # fmt: skip


@given(config=run_configs)
def test_a_saved_configuration_is_read_back_equal(config, tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "run.toml"
    path.write_text(config.to_toml(), encoding="utf-8")
    assert RunConfig.from_dict(read_toml(path), str(path)) == config


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "No such file"), (b"[data\n", "is not TOML"), (b'a = "\xff"\n', "is not TOML"),
     (b"training = 3\n", "[training]"), (b"epochs = 3\n", "below [training]")],
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_named(tmp_path, content, words):
    path = tmp_path / "run.toml"
    if content is not None:
        path.write_bytes(content)
    message = refusal(read_toml, path)
    assert str(path) in message and words in message


@pytest.mark.parametrize(
    ("tables", "given_tables", "merged"),
    [
        ({"training": {"minutes": 9.0, "seed": 1}}, {"training": {"steps": 3}},
         {"training": {"seed": 1, "steps": 3}}),
        ({"model": {"d_model": 8, "norm_first": False}}, {"model": {"preset": "tiny"}},
         {"model": {"norm_first": False, "preset": "tiny"}}),
        ({"model": {"d_model": 8}}, {"model": {"architecture": "cho"}},
         {"model": {"architecture": "cho"}}),
        ({"model": {"d_model": 8}}, {"model": {"architecture": "transformer"}},
         {"model": {"d_model": 8, "architecture": "transformer"}}),
    ],
)  # fmt: skip
def test_given_settings_win(tables, given_tables, merged):
    assert merge(tables, given_tables) == merged


def test_a_setting_that_a_resumed_run_may_change_does_not_change_the_weights():
    assert not names_with(Trait.FREE) & names_with(Trait.WEIGHTS)
    for table, fields in SETTINGS.items():
        for name in fields:
            # The files of a text are known by their content.
            is_file = name.startswith(("train_", "validation_"))
            assert not is_file or f"{table}.{name}" not in names_with(Trait.WEIGHTS)
