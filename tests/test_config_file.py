"""The TOML file of a configuration: written, read back, and errors that name it."""

import dataclasses

import pytest
from configurations import TABLES, TEXT, TSV, refusal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tf_transformer.config import DataConfig, RunConfig, TokenizerConfig, TrainingConfig, read_toml
from tf_transformer.models.architectures import preset
from tf_transformer.models.configs import TransformerConfig

# No test shall fail because the machine is busy.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def positive(most):
    return st.integers(1, most)


def rates():
    return st.floats(0, 1, exclude_max=True, allow_subnormal=False)


def maybe(strategy):
    return st.none() | strategy


# Whatever a file name may hold; a lone surrogate is no Unicode, so no TOML file can hold it.
paths = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


@st.composite
def data_configs(draw):
    corpus = draw(
        st.sampled_from(["text", "tsv", "phrasebook", "copy", "reverse", "tfds:ted/pt_to_en"])
    )
    files = list({"text": TEXT, "tsv": TSV}.get(corpus, {}))
    if draw(st.booleans()):
        files = [name for name in files if name.startswith("train")]
    batch_tokens = draw(st.integers(2, 10**6))
    return DataConfig(
        corpus=corpus,
        **{name: draw(paths) for name in files},
        tfds_dir=draw(maybe(paths)),
        tfds_download=draw(st.booleans()),
        data_cache=draw(maybe(paths)),
        max_length=draw(st.integers(2, batch_tokens)),
        batch_tokens=batch_tokens,
    )


@st.composite
def training_configs(draw):
    lengths = {
        "steps": positive(10**9),
        "epochs": positive(10**4),
        "minutes": st.floats(1e-3, 1e6),
    }
    length = draw(st.sampled_from([None, *lengths]))
    return TrainingConfig(
        **({} if length is None else {length: draw(lengths[length])}),
        seed=draw(st.integers(0, 2**31 - 1)),
        learning_rate=draw(maybe(st.floats(1e-6, 1e3))),
        warmup_steps=draw(maybe(positive(10**6))),
        label_smoothing=draw(rates()),
        validation_steps=draw(maybe(positive(10**6))),
        precision=draw(st.sampled_from(["float32", "mixed_bfloat16", "mixed_float16"])),
    )


def run_configs_with(joint):
    """Embeddings are tied only where the vocabulary is joint."""
    return st.builds(
        RunConfig,
        data=data_configs(),
        tokenizer=st.builds(
            TokenizerConfig,
            vocab_size=maybe(st.integers(261, 10**6)),
            model_type=st.sampled_from(["bpe", "unigram"]),
            joint=st.just(joint),
        ),
        model=st.builds(
            lambda num_heads, width, **others: TransformerConfig(
                num_heads=num_heads, d_model=2 * num_heads * width, **others
            ),
            num_heads=positive(64),
            width=positive(100),
            num_layers=positive(100),
            d_ff=positive(10**5),
            dropout_rate=rates(),
            attention_dropout_rate=rates(),
            norm_first=st.booleans(),
            activation=st.sampled_from(["relu", "gelu", "swish"]),
            positions=st.sampled_from(["sinusoidal", "learned"]),
            max_positions=st.just(10**9),
            tie_output=st.booleans(),
            tie_embeddings=st.booleans() if joint else st.just(False),
        ),
        training=training_configs(),
    )


run_configs = st.booleans().flatmap(run_configs_with)


@unhurried
@given(config=run_configs)
def test_a_saved_configuration_is_read_back_equal(config, tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "run.toml"
    path.write_text(config.to_toml(), encoding="utf-8")
    assert RunConfig.from_dict(read_toml(path), str(path)) == config


def test_missing_settings_have_their_defaults():
    config = RunConfig.from_dict({"data": {"corpus": "copy"}, "training": {"steps": 5}})
    assert config == RunConfig(
        DataConfig(corpus="copy"),
        TokenizerConfig(),
        # These two are chosen for the corpus.
        dataclasses.replace(preset("tiny"), dropout_rate=None, attention_dropout_rate=None),
        TrainingConfig(steps=5),
    )


def test_a_saved_file_names_every_setting_that_is_not_none(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(RunConfig(DataConfig(corpus="copy")).to_toml(), encoding="utf-8")
    tables = read_toml(path)
    assert tables.keys() == TABLES.keys()
    changed = {"corpus": "copy", "num_layers": 4, "d_model": 128, "num_heads": 4, "d_ff": 256}
    for name, fields in TABLES.items():
        expected = {field.name: changed.get(field.name, field.default) for field in fields}
        expected.pop("preset", None)  # the sizes say what it stood for
        for rate in ("dropout_rate", "attention_dropout_rate"):
            expected.pop(rate, None)  # chosen for the corpus
        assert tables[name] == {k: v for k, v in expected.items() if v is not None}


def test_missing_data_is_named_with_file_and_table():
    message = refusal(RunConfig.from_dict, {}, "run.toml")
    assert message.startswith("run.toml: [data] missing --train-source")


def test_a_missing_file_is_named(tmp_path):
    path = tmp_path / "none.toml"
    assert str(path) in refusal(read_toml, path)


@pytest.mark.parametrize("content", [b"[data\n", b"steps = \n", b'a = "\xff"\n'])
def test_a_file_that_is_not_toml_is_named(tmp_path, content):
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    message = refusal(read_toml, path)
    assert str(path) in message and "is not TOML" in message
