"""What makes one checkpoint of a run better than another."""

from typing import NamedTuple

from tf_transformer.config import RunConfig
from tf_transformer.models.architectures import ARCHITECTURES, architecture_name


class Criterion(NamedTuple):
    """A metric of validation by which the best checkpoint is chosen.

    Attributes:
        metric: Its name in logs and checkpoints.
        label: Its name for people.
        lower_is_better: Whether the best has the lowest value.
        decimals: Of its values for people.
    """

    metric: str
    label: str
    lower_is_better: bool = False
    decimals: int = 2

    @classmethod
    def of(cls, config: RunConfig) -> "Criterion":
        """BLEU where the model of a run translates sources, otherwise the validation loss."""
        translates = ARCHITECTURES[architecture_name(config.model)].translates
        return BLEU if config.data.has_sources and translates else LOSS

    def rank(self, value: float) -> float:
        """A number that is higher for a better value."""
        return -value if self.lower_is_better else value

    def text(self, value: float) -> str:
        """A value for people."""
        return f"{value:.{self.decimals}f}"


BLEU = Criterion("val_bleu", "BLEU")
LOSS = Criterion("val_loss", "loss", lower_is_better=True, decimals=3)
