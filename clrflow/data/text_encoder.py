"""Turns short texts into vectors: static token vectors averaged, offline, in milliseconds, the same on every machine.

The vectors come inside the wordllama package (256 wide). A larger encoder can take its place: validate_data reads any embedding column.
"""

from __future__ import annotations

import functools
import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from clrflow.errors import BadInput

DIM = 256


def encode_texts(texts: list[str]) -> np.ndarray:
    """Unit vectors of texts, float32 [len(texts), DIM]; an empty text has the zero vector. BadInput when wordllama isn't installed."""
    if not texts:
        return np.zeros((0, DIM), dtype=np.float32)
    vectors = np.asarray(_encoder().embed(list(texts), norm=False), dtype=np.float32)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)


@functools.cache
def _encoder() -> Any:
    try:
        # It sets up the root logger when imported, which would change how the whole process logs.
        root = logging.getLogger()
        handlers, level = list(root.handlers), root.level
        import wordllama

        root.handlers[:], root.level = handlers, level
    except ImportError as error:
        raise BadInput("text encoder: the package wordllama is not installed; pip install 'clrflow[data]'.") from error
    logging.getLogger("wordllama").setLevel(logging.ERROR)
    folder = Path(wordllama.__file__).parent
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # The loader's default looks for the tokenizer in a folder that the wheel names otherwise, and would then download it.
        return wordllama.WordLlama.load(cache_dir=folder, disable_download=True)
