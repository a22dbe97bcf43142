import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from hetero_rl.config.tree import Config
from hetero_rl.errors import ConfigError, StorageError, TaskError
from hetero_rl.starter import cache, ensure_starter, starter_directory

SMALL = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "intermediate_size": 16}


@pytest.fixture
def configure(tmp_path):
    def make(*, seed=0, steps=2, batch=4, cache_dir=None, task=None, **sizes):
        starter = {
            **SMALL,
            "supervised_steps": steps,
            "supervised_batch_size": batch,
            "cache_dir": cache_dir or tmp_path,
            **sizes,
        }
        return Config.model_validate(
            {
                "run": {"seed": seed},
                "model": {"starter": starter},
                "task": {"dataset": "chain_sum", "max_prompt_tokens": 96, **(task or {})},
                "sampling": {"max_new_tokens": 8},
                "evaluation": {"prompts": 4},
            }
        )

    return make


def test_the_directory_is_a_hugging_face_model_in_safetensors(configure):
    directory = ensure_starter(configure())

    model = AutoModelForCausalLM.from_pretrained(directory)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    assert sorted(path.name for path in directory.iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert model.config.model_type == "qwen3"
    assert model.config.vocab_size == len(tokenizer)
    assert GenerationConfig.from_pretrained(directory).eos_token_id == tokenizer.eos_token_id == 2
    assert "lm_head.weight" not in load_file(directory / "model.safetensors")


def test_a_made_model_is_used_again_without_a_step(configure):
    reports = []
    first = ensure_starter(configure(), reports.append)
    written = (first / "model.safetensors").stat().st_mtime_ns

    assert ensure_starter(configure(), reports.append) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == written
    assert [report.step for report in reports] == [1, 2]


def test_the_same_settings_make_the_same_weights(configure, tmp_path):
    one = ensure_starter(configure(cache_dir=tmp_path / "one"))
    two = ensure_starter(configure(cache_dir=tmp_path / "two"))

    assert one.name == two.name
    assert (one / "model.safetensors").read_bytes() == (two / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"steps": 3},
        {"hidden_size": 32},
        {"task": {"dataset": "gcd"}},
        {"task": {"options": {"max_terms": 3}}},
        {"task": {"prompt_template": "{question}\n"}},
    ],
)
def test_whatever_shapes_the_model_changes_its_directory(configure, change):
    assert starter_directory(configure(**change)) != starter_directory(configure())


def test_what_does_not_shape_the_model_leaves_its_directory(configure):
    assert starter_directory(configure(task={"grading_timeout": 9.0})) == starter_directory(configure())


def test_making_a_model_leaves_the_generator_of_the_caller_alone(configure):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)

    ensure_starter(configure())

    assert torch.equal(torch.rand(1), expected)


def test_nothing_is_left_under_the_final_name_when_making_fails(configure, tmp_path):
    def fail(_):
        raise KeyboardInterrupt

    config = configure()
    with pytest.raises(KeyboardInterrupt):
        ensure_starter(config, fail)

    assert list((tmp_path / "starters").iterdir()) == []
    assert ensure_starter(config).is_dir()


def test_a_model_that_another_process_finished_first_is_kept(configure, monkeypatch):
    config = configure()
    made = ensure_starter(config)
    (made / "theirs").touch()
    monkeypatch.setattr(cache, "starter_directory", lambda _: made)
    monkeypatch.setattr(type(made), "is_dir", iter_false_then_true(type(made).is_dir))

    assert ensure_starter(config) == made
    assert (made / "theirs").exists()


def iter_false_then_true(is_dir):
    answers = iter([False])
    return lambda path: next(answers, None) is not False and is_dir(path)


def test_supervision_ends_early_below_the_target_loss(configure):
    reports = []

    ensure_starter(configure(steps=50, target_loss=100.0), reports.append)

    assert [report.step for report in reports] == [1, 2, 3, 4]


def test_heads_that_do_not_divide_the_hidden_size_are_refused(configure):
    with pytest.raises(ConfigError, match=r"hidden_size 18 must be an even number of times .*num_heads 4"):
        ensure_starter(configure(hidden_size=18, num_heads=4))


def test_a_task_without_solutions_is_refused(configure):
    with pytest.raises(TaskError, match=r"this task has none for .*; set model\.path"):
        ensure_starter(configure(task={"dataset": "graph_color", "max_prompt_tokens": 1024}))


def test_a_cache_directory_that_cannot_be_written_is_refused(configure, tmp_path):
    (tmp_path / "file").touch()

    with pytest.raises(StorageError, match=r"set model\.starter\.cache_dir"):
        ensure_starter(configure(cache_dir=tmp_path / "file"))
