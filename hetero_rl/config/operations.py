"""Credentials, logs, monitoring and cost. Part of the tree of settings (`config.tree`)."""

import math
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from hetero_rl.config.section import Name, Section

__all__ = ["CostConfig", "LoggingConfig", "ObservabilityConfig", "SecurityConfig"]


class SecurityConfig(Section):
    """Transport security: bundles of `hetero-rl certs`, or certificates of your own; nothing is plaintext on loopback."""

    credentials: Path | None = None
    """Bundle that this process shows to the hub."""
    hub_credentials: Path | None = None
    """Bundle that a hub shows; None takes `credentials`."""
    registry: Path | None = None
    """For a hub: the file of `hetero-rl certs` that knows tokens and revocations."""
    certificate_authority: Path | None = None
    certificate: Path | None = None
    """Own certificate instead of a bundle; names its holder as hetero-rl://ROLE/NAME."""
    private_key: Path | None = None
    insecure: bool = False
    """Listen on a non-loopback address without TLS. Anyone who reaches the port can then change the run."""

    @property
    def enabled(self) -> bool:
        """Whether calls to the hub use TLS."""
        return self.certificate is not None or self.credentials is not None

    @property
    def serves_tls(self) -> bool:
        """Whether a hub with these settings speaks TLS."""
        return self.enabled or self.hub_credentials is not None

    @model_validator(mode="after")
    def _all_or_none(self) -> "SecurityConfig":
        paths = (self.certificate_authority, self.certificate, self.private_key)
        if any(paths) and not all(paths):
            raise ValueError(
                "give certificate_authority, certificate and private_key together, or none of them"
            )
        if any(paths) and (self.credentials or self.hub_credentials):
            raise ValueError("give a credentials bundle or certificate files, not both")
        return self


class LoggingConfig(Section):
    """What a person sees and where metrics go."""

    live: bool | None = None
    """Live view; None shows it on a terminal."""
    tensorboard: bool = True
    audit: bool = True
    """Write audit.html and audit.json into the run directory at the end of training."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"
    """Log records as lines for people, or as one JSON object each, with run, worker and version."""


class ObservabilityConfig(Section):
    """What monitoring reads, and further places that metrics go to."""

    metrics_listen: str = ""
    """host:port where this process answers Prometheus; needs hetero-rl[metrics]. Empty is off, port 0 picks a free one."""
    wandb: bool = False
    """Whether the trainer also logs to Weights & Biases; needs hetero-rl[wandb]."""
    trackio: bool = False
    """Whether the trainer also logs to trackio; needs hetero-rl[trackio]."""
    traces: str = Field("", pattern=r"^(https?://[^\s@]+)?$")
    """OTLP collector that takes a trace of each group, such as "http://127.0.0.1:4318"; needs hetero-rl[otel]. Empty is off."""
    trace_share: float = Field(1.0, gt=0, le=1)
    """Share of groups that are traced; the same groups in every process."""
    project: Name = "hetero-rl"
    """Project at Weights & Biases and trackio; run.name is the group there."""


class CostConfig(Section):
    """What devices cost, for `hetero-rl status`; nothing is decided by it."""

    device_hour: dict[str, float] = Field(default_factory=dict)
    """Price of one device's hour by backend, such as {ascend = 1.1, cuda = 2.4}; backends without one are not priced."""
    devices_per_worker: dict[str, int] = Field(default_factory=dict)
    """Devices of a worker by backend, where that is not one."""
    currency: str = Field("", max_length=8)
    """Unit of the prices, as it is shown."""

    @model_validator(mode="after")
    def _no_negative_price(self) -> "CostConfig":
        for name, price in self.device_hour.items():
            if not 0 <= price < math.inf:
                raise ValueError(f"device_hour of {name} is {price}: a price is finite and not negative")
        for name, count in self.devices_per_worker.items():
            if count < 1:
                raise ValueError(f"devices_per_worker of {name} is {count}: give at least 1")
        return self
