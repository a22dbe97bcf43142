# A worker on AMD cards: the vendor's vLLM image with hetero-rl installed into it, whose versions are held by the constraints.
# The process runs as root, as the image's own does: access to the devices depends on the host's groups.
ARG BASE=rocm/vllm:rocm7.14.0_cdna_ubuntu24.04_py3.14_pytorch_2.11.0_vllm_0.23.0
FROM ${BASE}
ARG PIP_NO_INDEX=""
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY hetero_rl hetero_rl
COPY backends/rocm backends/rocm
RUN --mount=type=bind,source=docker/wheels,target=/wheels \
    python3 -m pip install --no-cache-dir --find-links /wheels -c backends/rocm/image-constraints.txt '.[codec,metrics]' ./backends/rocm
ENV PYTHONUNBUFFERED=1
WORKDIR /root
STOPSIGNAL SIGTERM
ENTRYPOINT ["hetero-rl"]
CMD ["worker", "--hub", "hub:7077", "--infer-backend", "rocm"]
