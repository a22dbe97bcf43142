import string

import pytest
from transformers import AutoTokenizer

from hetero_rl.starter.tokenizer import VOCABULARY, build_tokenizer

PRINTABLE = "".join(sorted(set(string.printable) - set("\t\r\x0b\x0c")))
INSTRUCTION = "Spell this word backward: "


@pytest.fixture
def tokenizer(tmp_path):
    build_tokenizer(64, INSTRUCTION).save_pretrained(tmp_path)
    return AutoTokenizer.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    "text", [PRINTABLE, "two  spaces,\n don't \n\n", "", f"{INSTRUCTION}sun", "a <eos b"]
)
def test_text_comes_back_as_it_was(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=True) == text


def test_each_character_is_one_token_after_the_beginning_token(tokenizer):
    assert tokenizer.encode("ab\n") == [
        VOCABULARY["<bos>"],
        VOCABULARY["a"],
        VOCABULARY["b"],
        VOCABULARY["\n"],
    ]


def test_the_instruction_is_one_token_of_the_first_free_id(tokenizer):
    assert tokenizer.encode(f"{INSTRUCTION}s", add_special_tokens=False) == [
        len(VOCABULARY),
        VOCABULARY["s"],
    ]
    assert len(tokenizer) == len(VOCABULARY) + 1


def test_special_tokens_have_their_ids(tokenizer):
    special = (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id)

    assert special == (0, 1, 2, 3)


def test_characters_outside_ascii_are_unknown(tokenizer):
    assert tokenizer.encode("é", add_special_tokens=False) == [VOCABULARY["<unk>"]]
