# A worker on CPUs with the reference engine. Also the image of a relay.
ARG BASE=python:3.12-slim-bookworm
FROM ${BASE} AS wheels
# PIP_NO_INDEX=1 builds without a network from what lies in docker/wheels.
ARG PIP_NO_INDEX=""
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY hetero_rl hetero_rl
COPY backends/cpu backends/cpu
RUN --mount=type=bind,source=docker/wheels,target=/wheels \
    python3 -m venv /build \
    && /build/bin/python -m pip wheel --no-cache-dir --no-deps --find-links /wheels --wheel-dir /dist . ./backends/cpu

# Dependencies come in layers of their own, this first one the same for worker and trainer: a new version of hetero-rl
# replaces the last layer, which is small. An empty package stands for it here.
FROM ${BASE} AS dependencies
ARG PIP_NO_INDEX=""
# Without the CPU index pip would bring the CUDA libraries along.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /opt/hetero-rl/requirements
COPY pyproject.toml README.md LICENSE constraints.txt ./
RUN --mount=type=bind,source=docker/wheels,target=/wheels \
    python3 -m venv /opt/hetero-rl && install -D /dev/null hetero_rl/__init__.py \
    && /opt/hetero-rl/bin/python -m pip install --no-cache-dir --find-links /wheels --extra-index-url "${TORCH_INDEX}" \
    -c constraints.txt '.[codec,metrics,transformers]'

FROM dependencies
RUN --mount=type=bind,from=wheels,source=/dist,target=/dist \
    /opt/hetero-rl/bin/python -m pip install --no-cache-dir --no-index --no-deps --force-reinstall /dist/*.whl \
    && install -d -m 1777 /credentials /cache /home/hetero-rl /home/hetero-rl/.cache
ENV PATH=/opt/hetero-rl/bin:${PATH} HOME=/home/hetero-rl PYTHONUNBUFFERED=1
WORKDIR /home/hetero-rl
USER 10001:10001
STOPSIGNAL SIGTERM
ENTRYPOINT ["hetero-rl"]
CMD ["worker", "--hub", "hub:7077", "--infer-backend", "cpu"]
