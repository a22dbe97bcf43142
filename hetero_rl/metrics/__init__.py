"""What Prometheus scrapes from hub, worker, relay and trainer. Only `exporter` needs the extra `metrics`."""
