"""The limits of the local server; the command line reads them before anything is loaded."""

from pydantic import PositiveInt
from pydantic.dataclasses import dataclass

from tf_transformer.config_fields import CHECKED, setting


@dataclass(frozen=True, config=CHECKED)
class Limits:
    """The limits of a request; each is an option of `tf-transformer serve`.

    Example:
        >>> from tf_transformer.serving import Limits
        >>> Limits(request_seconds=10).max_texts
        64
    """

    max_characters: PositiveInt = setting(
        100_000, "characters in all texts of a request; status 413 if exceeded"
    )
    max_texts: PositiveInt = setting(64, "texts in a request; status 413 if exceeded")
    request_seconds: PositiveInt = setting(
        60, "seconds for a request to arrive and be answered; status 504 if exceeded"
    )

    @property
    def max_body_bytes(self) -> int:
        """The most bytes of a request: JSON has up to 12 for a character (an emoji as ASCII)."""
        around_a_text = 100  # quotes, and in the row form the names of the inputs
        return 12 * self.max_characters + around_a_text * (self.max_texts + 1)
