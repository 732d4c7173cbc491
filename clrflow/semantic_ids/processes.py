"""Training by several processes of this machine, which read the embeddings from one file and so share its pages.

Next: __main__.py (one of them).
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor

from clrflow.launch.local import run_torchrun
from clrflow.semantic_ids.rqvae import RqVae
from clrflow.semantic_ids.settings import SemanticIdSettings
from clrflow.semantic_ids.team import Team
from clrflow.semantic_ids.training import Epoch, Trained, train

EMBEDDINGS, START, SETTINGS, MODEL, HISTORY = "embeddings.npy", "start.safetensors", "settings.json", "model.safetensors", "history.json"


def train_by_processes(embeddings: NDArray[np.float32], settings: SemanticIdSettings, start: RqVae | None = None) -> Trained:
    """What training.train gives, by `settings.num_processes` processes that torchrun starts; see there."""
    with tempfile.TemporaryDirectory(prefix="clrflow-semantic-ids-") as place:
        folder = Path(place)
        np.save(folder / EMBEDDINGS, embeddings)
        (folder / SETTINGS).write_text(settings.model_dump_json())
        if start is not None:
            safetensors.torch.save_file(_weights(start), folder / START)
        run_torchrun(
            "clrflow.semantic_ids", [place], num_processes=settings.num_processes, what="training of semantic ids", again="it starts afresh"
        )
        model = _empty(embeddings.shape[1], settings)
        model.load_state_dict(safetensors.torch.load_file(folder / MODEL))
        history: dict[str, Any] = json.loads((folder / HISTORY).read_text())
    epochs = tuple(
        Epoch(**{**epoch, "usage": tuple(epoch["usage"]), "perplexity": tuple(epoch["perplexity"])}) for epoch in history["epochs"]
    )
    return Trained(model=model.eval(), epochs=epochs, best_epoch=history["best_epoch"])


def take_part(place: str, device: torch.device, team: Team) -> None:
    """The work of one process of `train_by_processes`; the first one writes the result."""
    folder = Path(place)
    settings = SemanticIdSettings.model_validate_json((folder / SETTINGS).read_text())
    embeddings = torch.from_numpy(np.load(folder / EMBEDDINGS, mmap_mode="c"))  # written to by nobody; torch wants to be allowed to
    start = None
    if (folder / START).exists():
        start = _empty(embeddings.shape[1], settings)
        start.load_state_dict(safetensors.torch.load_file(folder / START))
    trained = train(embeddings, settings, device, start, team)
    if team.rank == 0:
        safetensors.torch.save_file(_weights(trained.model), folder / MODEL)
        history = {"epochs": [dataclasses.asdict(epoch) for epoch in trained.epochs], "best_epoch": trained.best_epoch}
        (folder / HISTORY).write_text(json.dumps(history))


def _empty(dim: int, settings: SemanticIdSettings) -> RqVae:
    return RqVae(dim, settings.latent_dim, settings.hidden_dims, settings.num_levels, settings.num_codes)


def _weights(model: RqVae) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
