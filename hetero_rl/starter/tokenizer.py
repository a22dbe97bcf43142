"""A character tokenizer: one token for each printable ASCII character and the newline."""

import string
from typing import Any

__all__ = ["SPECIAL_TOKENS", "VOCABULARY", "build_tokenizer"]

SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>", "<unk>")
"""Ids 0 to 3."""
CHARACTERS = "\n" + "".join(sorted(string.ascii_letters + string.digits + string.punctuation + " "))
VOCABULARY = {token: index for index, token in enumerate((*SPECIAL_TOKENS, *CHARACTERS))}
"""Token to id, 100 of them."""


def build_tokenizer(max_length: int, instruction: str = "") -> Any:
    """The tokenizer as `transformers.PreTrainedTokenizerFast`; encoding starts with <bos>.

    Args:
        max_length: Longest sequence that it says the model takes.
        instruction: Text that becomes one token where it occurs, of the first id after the characters. It is what all
            questions of a task begin with: spelled out, it would be most of the work of a small model.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    pad, bos, eos, unknown = SPECIAL_TOKENS
    core = Tokenizer(models.WordLevel(VOCABULARY, unk_token=unknown))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    core.decoder = decoders.Fuse()
    core.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, VOCABULARY[bos])]
    )
    if instruction:
        core.add_tokens([AddedToken(instruction, normalized=False)])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=pad,
        bos_token=bos,
        eos_token=eos,
        unk_token=unknown,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )
