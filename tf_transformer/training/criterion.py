"""What makes one checkpoint of a run better than another."""

from typing import TYPE_CHECKING, NamedTuple

from tf_transformer.config import RunConfig
from tf_transformer.errors import ConfigError
from tf_transformer.models.architectures import ARCHITECTURES, architecture_name

if TYPE_CHECKING:
    from tf_transformer.evaluation import Scores


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
        """The criterion of a run.

        Raises:
            ConfigError: It needs translations, which the run does not make.
        """
        name = config.training.criterion or ("bleu" if translates(config) else "loss")
        if name != "loss" and not translates(config):
            raise ConfigError(
                f"criterion={name!r} needs translations, and this run makes none. Omit it."
            )
        return {"bleu": BLEU, "chrf": CHRF, "loss": LOSS}[name]

    def of_scores(self, scores: "Scores") -> float:
        """Its value among the scores of translations, for BLEU and chrF."""
        return getattr(scores, self.metric.removeprefix("val_"))

    def rank(self, value: float) -> float:
        """A number that is higher for a better value."""
        return -value if self.lower_is_better else value

    def text(self, value: float) -> str:
        """A value for people."""
        return f"{value:.{self.decimals}f}"


def translates(config: RunConfig) -> bool:
    """Returns whether a run translates its validation text, rather than only score it."""
    return config.data.has_sources and ARCHITECTURES[architecture_name(config.model)].translates


BLEU = Criterion("val_bleu", "BLEU")
CHRF = Criterion("val_chrf", "chrF")
LOSS = Criterion("val_loss", "loss", lower_is_better=True, decimals=3)
