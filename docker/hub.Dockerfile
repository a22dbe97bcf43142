# The hub, and the commands of an operator: no torch, no numpy. Also the image of `hetero-rl certs`, `status` and `health`.
# Pin the base by digest in production: --build-arg BASE=python:3.12-slim-bookworm@sha256:...
ARG BASE=python:3.12-slim-bookworm
FROM ${BASE} AS wheels
# PIP_NO_INDEX=1 builds without a network from what lies in docker/wheels.
ARG PIP_NO_INDEX=""
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY hetero_rl hetero_rl
RUN --mount=type=bind,source=docker/wheels,target=/wheels \
    python3 -m venv /build \
    && /build/bin/python -m pip wheel --no-cache-dir --no-deps --find-links /wheels --wheel-dir /dist .

# Dependencies come in a layer of their own: a new version of hetero-rl replaces the last layer, which is small. An empty
# package stands for it here.
FROM ${BASE} AS dependencies
ARG PIP_NO_INDEX=""
WORKDIR /opt/hetero-rl/requirements
COPY pyproject.toml README.md LICENSE constraints.txt ./
RUN --mount=type=bind,source=docker/wheels,target=/wheels \
    python3 -m venv /opt/hetero-rl && install -D /dev/null hetero_rl/__init__.py \
    && /opt/hetero-rl/bin/python -m pip install --no-cache-dir --find-links /wheels -c constraints.txt '.[certs,metrics]'

FROM dependencies
# A named volume takes the mode of the directory that it covers; the container may run under any user id.
RUN --mount=type=bind,from=wheels,source=/dist,target=/dist \
    /opt/hetero-rl/bin/python -m pip install --no-cache-dir --no-index --no-deps --force-reinstall /dist/*.whl \
    && install -d -m 1777 /runs /credentials /authority /home/hetero-rl
ENV PATH=/opt/hetero-rl/bin:${PATH} HOME=/home/hetero-rl PYTHONUNBUFFERED=1
WORKDIR /home/hetero-rl
USER 10001:10001
STOPSIGNAL SIGTERM
EXPOSE 7077
HEALTHCHECK --interval=15s --timeout=30s --start-period=60s --retries=4 CMD ["hetero-rl", "health", "--hub", "127.0.0.1:7077"]
ENTRYPOINT ["hetero-rl"]
CMD ["hub", "--listen", "0.0.0.0:7077", "--run-dir", "/runs/default"]
