"""Files for a configuration, and how a refusal is caught."""

import pytest

from tf_transformer.errors import ConfigError

TEXT = {
    "train_source": "a.de",
    "train_target": "a.en",
    "validation_source": "b.de",
    "validation_target": "b.en",
}
TSV = {"train_tsv": "a.tsv", "validation_tsv": "b.tsv"}


def refusal(build, *args, **kwargs):
    """Returns the one-line message of the ConfigError that `build` must raise."""
    with pytest.raises(ConfigError) as caught:
        build(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)
