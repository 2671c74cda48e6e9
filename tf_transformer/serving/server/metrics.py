"""What a server counts, for Prometheus."""

from collections.abc import Callable

import prometheus_client as prometheus

CONTENT_TYPE = prometheus.CONTENT_TYPE_LATEST
_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The metrics of one server; `signature` is empty where a request did not come so far."""

    def __init__(self) -> None:
        self._registry = prometheus.CollectorRegistry()
        self._requests = prometheus.Counter(
            "tf_transformer_requests",
            "Predict requests that were answered.",
            ("signature", "status"),
            registry=self._registry,
        )
        self._seconds = prometheus.Histogram(
            "tf_transformer_request_seconds",
            "Time from a request's head to its answer, of those with status 200.",
            ("signature",),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._texts = prometheus.Histogram(
            "tf_transformer_batch_texts",
            "Texts of the batches that ran.",
            ("signature",),
            buckets=_SIZES,
            registry=self._registry,
        )
        self._characters = prometheus.Counter(
            "tf_transformer_characters",
            "Characters of the texts that were taken.",
            ("signature",),
            registry=self._registry,
        )
        prometheus.ProcessCollector(registry=self._registry)

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Adds a number that is asked for when the metrics are."""
        gauge = prometheus.Gauge(f"tf_transformer_{name}", text, registry=self._registry)
        gauge.set_function(value)

    def answered(self, signature: str, status: int, seconds: float) -> None:
        """Counts a predict request."""
        self._requests.labels(signature, status).inc()
        if status == 200:
            self._seconds.labels(signature).observe(seconds)

    def taken(self, signature: str, characters: int) -> None:
        """Counts the characters of a request that goes into the queue."""
        self._characters.labels(signature).inc(characters)

    def ran(self, signature: str, texts: int) -> None:
        """Counts a batch."""
        self._texts.labels(signature).observe(texts)

    def page(self) -> bytes:
        """All of it in Prometheus' text format."""
        return prometheus.generate_latest(self._registry)
