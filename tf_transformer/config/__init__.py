"""The configuration of a run, as in run.toml."""

from tf_transformer.config.run import (
    RunConfig,
    architectures_with,
    merge_tables,
    read_toml,
    settings_by_table,
    without_choices,
)
from tf_transformer.config.tables import DataConfig, ModelChoice, TokenizerConfig, TrainingConfig

__all__ = [
    "DataConfig",
    "ModelChoice",
    "RunConfig",
    "TokenizerConfig",
    "TrainingConfig",
    "architectures_with",
    "merge_tables",
    "read_toml",
    "settings_by_table",
    "without_choices",
]
