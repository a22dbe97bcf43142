# The trainer on CPUs: to try the whole system on any machine.
ARG BASE=python:3.12-slim-bookworm
FROM ${BASE} AS build
ARG PIP_NO_INDEX=""
# Without the CPU index pip would bring the CUDA libraries along.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /src
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY hetero_rl hetero_rl
COPY backends/cpu backends/cpu
RUN --mount=type=bind,source=docker/wheels,target=/wheels \
    python3 -m venv /opt/hetero-rl \
    && /opt/hetero-rl/bin/python -m pip install --no-cache-dir --find-links /wheels --extra-index-url "${TORCH_INDEX}" \
    -c constraints.txt '.[trainer,metrics]' ./backends/cpu

FROM ${BASE}
COPY --from=build /opt/hetero-rl /opt/hetero-rl
COPY configs /configs
RUN install -d -m 1777 /runs /credentials /home/hetero-rl
ENV PATH=/opt/hetero-rl/bin:${PATH} HOME=/home/hetero-rl PYTHONUNBUFFERED=1
WORKDIR /home/hetero-rl
USER 10001:10001
STOPSIGNAL SIGTERM
ENTRYPOINT ["hetero-rl"]
CMD ["train", "/configs/quickstart.toml"]
