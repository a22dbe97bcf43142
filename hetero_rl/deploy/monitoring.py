"""Services of the profile `monitoring`: Prometheus and Grafana beside a hub, with the files of docker/monitoring."""

from hetero_rl.deploy.services import CREDENTIALS_DIR, Place, Service, common

__all__ = ["METRICS_LISTEN", "grafana_service", "prometheus_service"]

METRICS_PORT = 9464
METRICS_LISTEN = ("--metrics-listen", f"0.0.0.0:{METRICS_PORT}")
"""Flags of services that are scraped. The port is published nowhere, and speaks TLS with client certificates."""
_IMAGE_GROUP = "10001"
"""Of the files that the images of hetero-rl write; what Prometheus shows as its own is readable by it."""


def prometheus_service(place: Place, *, group: str = _IMAGE_GROUP) -> Service:
    """Prometheus, which reads the metrics of this project's services and evaluates the alert rules.

    Args:
        place: Of the service; `credentials` holds a directory `prometheus` of `hetero-rl certs unpack`.
        group: Of the files in that directory.
    """
    # A volume is mounted as a whole; of a directory of the host, which its owner alone may enter, just what is needed.
    part = "/prometheus" if place.credentials.startswith(".") else ""
    return {
        "image": "${HETERO_RL_PROMETHEUS_IMAGE:-prom/prometheus:v3.5.0}",
        **common(place),
        "command": [
            "--config.file=/etc/prometheus/prometheus.yml",
            "--storage.tsdb.path=/prometheus",
            "--storage.tsdb.retention.time=${HETERO_RL_METRICS_RETENTION:-30d}",
        ],
        "group_add": [group],
        "ports": ["127.0.0.1:${HETERO_RL_PROMETHEUS_PORT:-9090}:9090"],
        "volumes": [
            "./monitoring/prometheus.yml:/etc/prometheus/prometheus.yml:ro",
            "./monitoring/alerts.yml:/etc/prometheus/alerts.yml:ro",
            f"{place.credentials}{part}:{CREDENTIALS_DIR}{part}:ro",
            "prometheus:/prometheus",
        ],
    }


def grafana_service(place: Place) -> Service:
    """Grafana with the dashboard; its first password is asked to be changed at the first login."""
    return {
        "image": "${HETERO_RL_GRAFANA_IMAGE:-grafana/grafana:12.1.0}",
        **common(place),
        "environment": {"GF_USERS_ALLOW_SIGN_UP": "false", "GF_ANALYTICS_REPORTING_ENABLED": "false"},
        "ports": ["127.0.0.1:${HETERO_RL_GRAFANA_PORT:-3000}:3000"],
        "volumes": [
            "./monitoring/grafana/provisioning:/etc/grafana/provisioning:ro",
            "./monitoring/grafana/dashboards:/var/lib/grafana/dashboards:ro",
            "grafana:/var/lib/grafana",
        ],
    }
