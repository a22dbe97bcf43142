import os

# Minutes of a real Prometheus: collected by `make test-monitoring` only.
collect_ignore_glob = [] if "HETERO_RL_MONITORING" in os.environ else ["test_*.py"]
