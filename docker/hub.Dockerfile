# The hub, and the commands of an operator: no torch, no numpy. Also the image of `hetero-rl certs`, `status` and `health`.
# Pin the base by digest in production: --build-arg BASE=python:3.12-slim-bookworm@sha256:...
ARG BASE=python:3.12-slim-bookworm
FROM ${BASE} AS build
# PIP_NO_INDEX=1 builds without a network from what lies in docker/wheels.
ARG PIP_NO_INDEX=""
WORKDIR /src
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY hetero_rl hetero_rl
RUN --mount=type=bind,source=docker/wheels,target=/wheels \
    python3 -m venv /opt/hetero-rl \
    && /opt/hetero-rl/bin/python -m pip install --no-cache-dir --find-links /wheels -c constraints.txt '.[certs,metrics]'

FROM ${BASE}
COPY --from=build /opt/hetero-rl /opt/hetero-rl
# A named volume takes the mode of the directory that it covers; the container may run under any user id.
RUN install -d -m 1777 /runs /credentials /authority /home/hetero-rl
ENV PATH=/opt/hetero-rl/bin:${PATH} HOME=/home/hetero-rl PYTHONUNBUFFERED=1
WORKDIR /home/hetero-rl
USER 10001:10001
STOPSIGNAL SIGTERM
EXPOSE 7077
HEALTHCHECK --interval=15s --timeout=10s --start-period=60s --retries=4 CMD ["hetero-rl", "health", "--hub", "127.0.0.1:7077"]
ENTRYPOINT ["hetero-rl"]
CMD ["hub", "--listen", "0.0.0.0:7077", "--run-dir", "/runs/default"]
