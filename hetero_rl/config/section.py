"""What every section of the settings is made from."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Name", "Section"]

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]


class Section(BaseModel):
    """Base of every section: frozen, unknown keys refused, defaults checked like input."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, use_attribute_docstrings=True
    )
