"""From question to prompt token ids, and from completion ids back to text."""

from collections.abc import Sequence
from typing import Any, Protocol

from hetero_rl.config.tree import TaskConfig
from hetero_rl.errors import TaskError

__all__ = ["PromptEncoder", "Tokenizer"]


class Tokenizer(Protocol):
    """What is used of a Hugging Face tokenizer."""

    chat_template: Any
    bos_token_id: int | None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> Any:
        """Text of ids."""

    def apply_chat_template(self, conversation: list[dict[str, str]], **options: Any) -> Any:
        """The conversation as the model was trained to see it."""


class PromptEncoder:
    """Turns questions into prompt token ids by one template."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        config: TaskConfig,
        *,
        max_new_tokens: int,
        context_tokens: int | None = None,
    ) -> None:
        """Checks template and limits.

        Args:
            tokenizer: The model's tokenizer.
            config: Section `task`: template, chat template, longest prompt.
            max_new_tokens: Longest completion.
            context_tokens: Longest sequence of the model; None where it has no limit.

        Raises:
            TaskError: If the template has no {question}, the tokenizer has no chat template, or prompt and completion
                at their longest do not fit the model.
        """
        if "{question}" not in config.prompt_template:
            raise TaskError(f"task.prompt_template must contain {{question}}, got {config.prompt_template!r}")
        if config.chat_template and not tokenizer.chat_template:
            raise TaskError("task.chat_template is on, but this model's tokenizer has no chat template")
        if context_tokens is not None and config.max_prompt_tokens + max_new_tokens > context_tokens:
            raise TaskError(
                f"task.max_prompt_tokens {config.max_prompt_tokens} + sampling.max_new_tokens {max_new_tokens} "
                f"is more than the {context_tokens} tokens of the model"
            )
        self._tokenizer = tokenizer
        self._config = config

    def text(self, question: str) -> str:
        """The prompt as the template makes it, before a chat template wraps it."""
        return self._config.prompt_template.replace("{question}", question)

    def encode(self, question: str) -> list[int]:
        """Prompt token ids.

        Raises:
            TaskError: If the prompt is empty or longer than `task.max_prompt_tokens`.
        """
        text = self.text(question)
        if self._config.chat_template:
            ids = self._tokenizer.apply_chat_template(
                [{"role": "user", "content": text}],
                add_generation_prompt=True,
                tokenize=True,
                return_dict=False,
            )
        else:
            ids = self._tokenizer.encode(text)
        limit = self._config.max_prompt_tokens
        if not 1 <= len(ids) <= limit:
            raise TaskError(
                f"a prompt of {len(ids)} tokens; task.max_prompt_tokens allows 1 to {limit}. It begins: {text[:80]!r}"
            )
        return [int(token_id) for token_id in ids]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of a completion without special tokens."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))
