# A worker on Ascend NPUs: the vendor's vLLM image with hetero-rl installed into it, whose versions are held by the constraints.
# The process runs as root, as the image's own does: the driver files belong to the host's HwHiAiUser.
ARG BASE=quay.io/ascend/vllm-ascend:v0.23.0
FROM ${BASE}
ARG PIP_NO_INDEX=""
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY hetero_rl hetero_rl
COPY backends/ascend backends/ascend
RUN --mount=type=bind,source=docker/wheels,target=/wheels \
    python3 -m pip install --no-cache-dir --find-links /wheels -c backends/ascend/image-constraints.txt '.[codec,metrics]' ./backends/ascend
COPY --chmod=755 docker/with-setup.sh /usr/local/bin/with-setup
ENV PYTHONUNBUFFERED=1
WORKDIR /root
STOPSIGNAL SIGTERM
# A command without a shell of its own does not read the environment that the image sets in ~/.bashrc.
ENTRYPOINT ["with-setup", "hetero-rl"]
CMD ["worker", "--hub", "hub:7077", "--infer-backend", "ascend"]
