import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from hetero_rl.errors import ConfigError, StorageError
from hetero_rl.trainer import export
from hetero_rl.trainer.checkpoint import CheckpointStore, Manifest
from hetero_rl.trainer.export import choose_checkpoint, export_model
from hetero_rl.weights.model_files import collect_model_files
from hetero_rl.weights.tensors import distinct_tensors


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    """A tiny Qwen3 with tied embeddings and a tokenizer of four tokens."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    directory = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=4,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=4,
        tie_word_embeddings=True,
        eos_token_id=1,
    )
    Qwen3ForCausalLM(config).save_pretrained(directory)
    words = Tokenizer(WordLevel({"a": 0, "</s>": 1, "b": 2, "?": 3}, unk_token="?"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>").save_pretrained(directory)
    return directory


@pytest.fixture
def checkpoints(tmp_path, model_dir):
    """RUN/checkpoints with the checkpoints of steps 2 and 4."""
    directory = tmp_path / "checkpoints"
    store = CheckpointStore(directory, keep=2, max_failures=1)
    model = AutoModelForCausalLM.from_pretrained(model_dir)
    for step in (2, 4):
        model.model.norm.weight.data.fill_(float(step))
        manifest = Manifest(
            run_id="r",
            step=step,
            weight_version=step,
            next_ordinal=0,
            consumed={},
            random_states={},
            config_digest="",
            versions={},
        )
        tensors = {named.name: named.tensor for named in distinct_tensors(model.state_dict())}
        files = [path for _, path in collect_model_files(model_dir)]
        store.save(manifest, {"model.safetensors": tensors}, files)
    return directory


def norm_of(directory) -> float:
    return float(load_file(directory / "model.safetensors")["model.norm.weight"][0])


def test_the_newest_checkpoint_is_chosen_unless_a_step_is_named(checkpoints):
    assert norm_of(choose_checkpoint(checkpoints, None)) == 4.0
    assert norm_of(choose_checkpoint(checkpoints, 2)) == 2.0


def test_a_step_without_a_checkpoint_names_those_there_are(checkpoints, tmp_path):
    with pytest.raises(ConfigError, match=r"no checkpoint of step 3; it holds \[2, 4\]"):
        choose_checkpoint(checkpoints, 3)
    with pytest.raises(ConfigError, match="no checkpoint yet"):
        choose_checkpoint(tmp_path / "none", None)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_an_exported_model_loads_in_its_data_type_with_the_weights_of_the_checkpoint(
    checkpoints, tmp_path, dtype
):
    target = tmp_path / "out" / "model"

    size = export_model(choose_checkpoint(checkpoints, None), target, dtype)

    model = AutoModelForCausalLM.from_pretrained(target, dtype="auto")
    assert model.dtype == getattr(torch, dtype)
    assert model.model.norm.weight.tolist() == [4.0] * 8
    assert size == (target / "model.safetensors").stat().st_size


def test_tied_weights_are_written_once(checkpoints, tmp_path):
    export_model(choose_checkpoint(checkpoints, None), tmp_path / "model", "bfloat16")

    names = set(load_file(tmp_path / "model" / "model.safetensors"))

    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names


def test_everything_a_loader_asks_for_is_there(checkpoints, tmp_path):
    export_model(choose_checkpoint(checkpoints, None), tmp_path / "model", "bfloat16")

    names = {path.name for path in (tmp_path / "model").iterdir()}
    config = json.loads((tmp_path / "model" / "config.json").read_text())

    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"} <= names
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert (config["dtype"], config["torch_dtype"]) == ("bfloat16", "bfloat16")
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"]


def test_a_directory_that_holds_something_is_left_alone(checkpoints, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "precious").touch()

    with pytest.raises(ConfigError, match="is there already"):
        export_model(choose_checkpoint(checkpoints, None), tmp_path / "model", "bfloat16")

    assert [path.name for path in (tmp_path / "model").iterdir()] == ["precious"]


def test_a_model_that_does_not_load_back_is_not_left_behind(checkpoints, tmp_path, monkeypatch):
    write = export.write_tensors

    def write_wrong(path, tensors):
        return write(path, {name: tensor + 1 for name, tensor in tensors.items()})

    monkeypatch.setattr(export, "write_tensors", write_wrong)

    with pytest.raises(StorageError, match="differs"):
        export_model(choose_checkpoint(checkpoints, None), tmp_path / "model", "bfloat16")

    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints"]
