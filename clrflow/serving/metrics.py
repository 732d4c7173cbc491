"""What a server tells Prometheus: requests and their seconds, conditions, and which index it serves."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

CONTENT_TYPE = CONTENT_TYPE_LATEST
SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
CONDITIONS = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """One registry a server, so that several in one process (tests) don't share counts."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.requests = Counter("clrflow_requests", "Predict requests answered, by HTTP status.", ["status"], registry=registry)
        self.seconds = Histogram(
            "clrflow_request_seconds", "Seconds from a predict request's headers to its answer.", buckets=SECONDS, registry=registry
        )
        self.conditions = Histogram(
            "clrflow_conditions_per_instance", "Conditions that an instance asked about.", buckets=CONDITIONS, registry=registry
        )
        self.waiting = Gauge("clrflow_requests_in_flight", "Predict requests that are computed or wait for a thread.", registry=registry)
        self.index = Gauge("clrflow_index_info", "1 for the version that is served.", ["version"], registry=registry)
        self.items = Gauge("clrflow_index_items", "Items in the index that is served.", registry=registry)
        self.loaded_at = Gauge("clrflow_index_loaded_timestamp_seconds", "Unix time at which it was loaded.", registry=registry)
        self.current = Gauge("clrflow_index_is_current", "1 while the version that is published is the one served.", registry=registry)
        self.failures = Counter("clrflow_index_load_failures", "Versions or pointers that could not be loaded.", registry=registry)

    def serves(self, version: str, num_items: int) -> None:
        """Another version is served from now on."""
        self.index.clear()
        self.index.labels(version).set(1)
        self.items.set(num_items)
        self.loaded_at.set_to_current_time()
        self.current.set(1)

    def exposition(self) -> bytes:
        return generate_latest(self._registry)
