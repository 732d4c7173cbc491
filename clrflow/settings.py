"""The base of every settings class: frozen, keyword-only, no unknown fields.

A step's settings stand beside the step (`clrflow/<step>/settings.py`); `config.py` assembles them into one tree.
"""

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Frozen, typed settings; the string below a field says its meaning, its unit and when it has no effect."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)
