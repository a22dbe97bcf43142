"""What travels beside the weights, and what does not change a model's identity."""

import json

import pytest

from hetero_rl.errors import ConfigError, DamagedError
from hetero_rl.weights.digests import digest_of_bytes
from hetero_rl.weights.model_files import (
    MODEL_FILE_LIMITS,
    collect_model_files,
    install_model_file,
    model_digests,
)
from hetero_rl.wire.messages import BlobReference, ModelFile

CONFIG = {"model_type": "qwen3", "hidden_size": 8, "text_config": {"layers": 2}}
TOKENIZER = {
    "version": "1.0",
    "truncation": None,
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]},
    "added_tokens": [],
}


@pytest.fixture
def make_model(tmp_path):
    def make(name="model", config=CONFIG, tokenizer=TOKENIZER):
        directory = tmp_path / name
        directory.mkdir()
        (directory / "config.json").write_text(json.dumps(config))
        if tokenizer is not None:
            (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
        return directory

    return make


def file_of(name, data):
    return ModelFile(name, BlobReference(digest_of_bytes(data), len(data)))


def test_what_changes_no_number_changes_no_digest(make_model):
    config = {
        "transformers_version": "5.0",
        "torch_dtype": "bfloat16",
        "hidden_size": 8,
        "_name_or_path": "/x",
        "text_config": {"dtype": "float32", "layers": 2},
        "model_type": "qwen3",
    }
    model = TOKENIZER["model"] | {"merges": [["a", "b"]], "byte_fallback": False, "unk_token": None}
    tokenizer = TOKENIZER | {"truncation": {"max_length": 4}, "padding": {"length": 3}, "model": model}
    assert model_digests(make_model()) == model_digests(make_model("other", config, tokenizer))


def test_another_architecture_changes_the_config_digest_alone(make_model):
    one, other = model_digests(make_model()), model_digests(make_model("other", CONFIG | {"hidden_size": 9}))
    assert one.config != other.config
    assert one.tokenizer == other.tokenizer


@pytest.mark.parametrize(
    "change",
    [
        {"model": TOKENIZER["model"] | {"vocab": {"a": 0, "b": 2, "ab": 1}}},
        {"model": TOKENIZER["model"] | {"merges": []}},
        {"model": TOKENIZER["model"] | {"byte_fallback": True}},
        {"added_tokens": [{"id": 3, "content": "</s>"}]},
        {"normalizer": {"type": "NFC"}},
    ],
)
def test_another_vocabulary_or_rule_changes_the_tokenizer_digest(make_model, change):
    one, other = model_digests(make_model()), model_digests(make_model("other", tokenizer=TOKENIZER | change))
    assert one.tokenizer != other.tokenizer


def test_plain_vocabulary_files_serve_where_there_is_no_tokenizer_json(make_model):
    one, other = make_model("one", tokenizer=None), make_model("other", tokenizer=None)
    (one / "vocab.json").write_text('{"a": 0}')
    (other / "vocab.json").write_text('{"a": 1}')
    assert model_digests(one).tokenizer != model_digests(other).tokenizer


def test_a_directory_that_is_no_model_is_named(make_model, tmp_path):
    with pytest.raises(ConfigError, match=r"config\.json is missing"):
        model_digests(tmp_path)
    with pytest.raises(ConfigError, match="has no tokenizer"):
        model_digests(make_model(tokenizer=None))


@pytest.mark.parametrize("text", ["[1]", "{", "[" * 100_000])
def test_a_config_that_is_not_an_object_is_refused(make_model, text):
    directory = make_model()
    (directory / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"config\.json"):
        model_digests(directory)


def test_neither_code_nor_weights_travel(make_model):
    directory = make_model()
    for name in ("modeling_x.py", "model.safetensors", "pytorch_model.bin", "chat_template.jinja"):
        (directory / name).write_text("x")
    collected = collect_model_files(directory)
    assert [file.name for file, _ in collected] == ["chat_template.jinja", "config.json", "tokenizer.json"]
    for file, path in collected:
        assert file == file_of(path.name, path.read_bytes())


def test_a_file_over_its_limit_is_not_collected(make_model, monkeypatch):
    monkeypatch.setitem(MODEL_FILE_LIMITS, "config.json", 3)
    with pytest.raises(ConfigError, match="at most 3"):
        collect_model_files(make_model())


def test_a_received_file_is_installed_under_its_name(tmp_path):
    path = install_model_file(tmp_path / "new", file_of("config.json", b"{}"), [b"{", b"}"])
    assert path == tmp_path / "new" / "config.json"
    assert path.read_bytes() == b"{}"
    assert [found.name for found in path.parent.iterdir()] == ["config.json"]


@pytest.mark.parametrize("chunks", [[b"{"], [b"{}", b" "], [b"[]"], []])
def test_bytes_other_than_promised_leave_the_file_that_was_there(tmp_path, chunks):
    (tmp_path / "config.json").write_bytes(b"old")
    with pytest.raises(DamagedError, match=r"config\.json"):
        install_model_file(tmp_path, file_of("config.json", b"{}"), chunks)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("config.json", b"old")]


@pytest.mark.parametrize("name", ["../config.json", "modeling.py", "/etc/passwd", "a/config.json", ""])
def test_a_name_that_may_not_travel_is_not_installed(tmp_path, name):
    with pytest.raises(DamagedError, match="not one of"):
        install_model_file(tmp_path, file_of(name, b"x"), [b"x"])
    assert list(tmp_path.iterdir()) == []


def test_a_promised_size_over_the_limit_is_refused_before_a_byte_is_taken(tmp_path):
    def untouched():
        raise AssertionError("the bytes were asked for")
        yield b""

    huge = ModelFile("config.json", BlobReference("0" * 64, 2**40))
    with pytest.raises(DamagedError, match="at most"):
        install_model_file(tmp_path, huge, untouched())
