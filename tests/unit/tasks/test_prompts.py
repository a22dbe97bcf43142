import pytest

from hetero_rl.config.tree import TaskConfig
from hetero_rl.errors import TaskError
from hetero_rl.tasks import PromptEncoder


class LetterTokenizer:
    """One id for each character; the chat template brackets the user's turn."""

    chat_template = None

    def encode(self, text, *, add_special_tokens=True):
        return [ord(character) for character in text]

    def decode(self, token_ids, *, skip_special_tokens=False):
        return "".join(chr(token_id) for token_id in token_ids if token_id or not skip_special_tokens)

    def apply_chat_template(self, conversation, **options):
        assert options == {"add_generation_prompt": True, "tokenize": True, "return_dict": False}
        return self.encode(f"[{conversation[0]['content']}]")


class ChatTokenizer(LetterTokenizer):
    chat_template = "[{{ messages[0].content }}]"


def encoder(tokenizer=None, *, max_new_tokens=4, context_tokens=None, **settings):
    return PromptEncoder(
        tokenizer or LetterTokenizer(),
        TaskConfig(**settings),
        max_new_tokens=max_new_tokens,
        context_tokens=context_tokens,
    )


def test_the_template_wraps_the_question():
    assert encoder(prompt_template="Q: {question}\nA:").encode("1+1") == [ord(c) for c in "Q: 1+1\nA:"]


def test_braces_in_a_question_are_left_alone():
    assert encoder().decode(encoder().encode("{question} {0}")) == "{question} {0}"


def test_the_chat_template_wraps_the_prompt():
    assert encoder(ChatTokenizer(), chat_template=True).encode("hi") == [ord(c) for c in "[hi]"]


def test_special_tokens_are_not_in_the_decoded_text():
    assert encoder().decode([ord("a"), 0]) == "a"


@pytest.mark.parametrize(("length", "fits"), [(0, False), (1, True), (8, True), (9, False)])
def test_prompts_outside_the_limit_are_refused(length, fits):
    limited = encoder(max_prompt_tokens=8)

    if fits:
        assert len(limited.encode("x" * length)) == length
    else:
        with pytest.raises(TaskError, match=f"a prompt of {length} tokens.*allows 1 to 8"):
            limited.encode("x" * length)


def test_a_template_without_the_question_is_refused():
    with pytest.raises(TaskError, match=r"must contain \{question\}"):
        encoder(prompt_template="Answer:")


def test_a_chat_template_the_tokenizer_lacks_is_refused():
    with pytest.raises(TaskError, match="tokenizer has no chat template"):
        encoder(chat_template=True)


def test_limits_beyond_the_context_of_the_model_are_refused():
    with pytest.raises(TaskError, match="more than the 11 tokens of the model"):
        encoder(max_prompt_tokens=8, max_new_tokens=4, context_tokens=11)
