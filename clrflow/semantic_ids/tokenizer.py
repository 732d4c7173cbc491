"""The tokenizer: the trained model, the ids that it has given out, and a hash by which both are known.

It is saved as safe tensors and JSON, never as a pickle. What it knows stays: an item that has an id keeps it whatever its embedding
becomes; a new item gets the free id nearest to it. Encoding computes in float64, so neither batch size nor device changes a code.
Next: step.py.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray

from clrflow import storage
from clrflow.errors import BadInput, ConfigError
from clrflow.semantic_ids.assign import Assigned, unique_codes
from clrflow.semantic_ids.catalogue import refuse_not_finite, unit_vectors
from clrflow.semantic_ids.previous import DESCRIPTION
from clrflow.semantic_ids.rqvae import RqVae

FORMAT = 1
"""Raised when older tokenizers would be read wrongly."""
WEIGHTS, ITEMS = "weights.safetensors", "items.safetensors"
BATCH = 8192
"""Items encoded at a time: bounds memory, changes nothing else."""

Ints = NDArray[np.int64]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """Gives items their codes."""

    model: RqVae
    """In float64."""
    item_ids: Ints
    """Items that have ids: the founding ones ascending, then those added, in order of addition."""
    codes: NDArray[np.int32]
    """[items, levels], unique."""
    num_founding: int
    """Items that it was made with; the hash covers these."""

    @classmethod
    def found(cls, model: RqVae, item_ids: Ints, embeddings: NDArray[np.float32]) -> tuple[Tokenizer, Assigned]:
        """Give the first items their ids: ascending item_ids, embeddings [items, dim]."""
        empty = cls(
            model=_in_float64(model),
            item_ids=np.zeros(0, dtype=np.int64),
            codes=np.zeros((0, model.quantiser.num_levels), dtype=np.int32),
            num_founding=0,
        )
        assigned = unique_codes(empty.latents(item_ids, embeddings), item_ids, empty.model.quantiser)
        return dataclasses.replace(empty, item_ids=item_ids, codes=assigned.codes, num_founding=len(item_ids)), assigned

    @property
    def num_levels(self) -> int:
        return self.model.quantiser.num_levels

    @property
    def num_codes(self) -> int:
        return self.model.quantiser.num_codes

    @property
    def hash(self) -> str:
        """What a model made with this tokenizer must find again: format, sizes, weights and founding ids; unchanged by additions."""
        total = hashlib.blake2b(digest_size=16)
        total.update(json.dumps(self._sizes(), sort_keys=True).encode())
        for name, tensor in sorted(_weights(self.model).items()):
            total.update(name.encode())
            total.update(tensor.numpy().tobytes())
        total.update(np.ascontiguousarray(self.item_ids[: self.num_founding]).tobytes())
        total.update(np.ascontiguousarray(self.codes[: self.num_founding]).tobytes())
        return total.hexdigest()

    @property
    def ids_hash(self) -> str:
        """Of all ids that it has given out, additions included."""
        total = hashlib.blake2b(digest_size=16)
        total.update(np.ascontiguousarray(self.item_ids).tobytes())
        total.update(np.ascontiguousarray(self.codes).tobytes())
        return total.hexdigest()

    def refuse_width(self, embeddings: NDArray[np.float32]) -> None:
        """BadInput where embeddings aren't as wide as those that it was made for."""
        if embeddings.ndim != 2 or embeddings.shape[1] != self.model.dim:
            raise BadInput(
                f"embeddings of shape {list(embeddings.shape)} were given to a tokenizer for width {self.model.dim}; "
                "encode with the text model that it was trained on, or train a new tokenizer."
            )

    def latents(self, item_ids: Ints, embeddings: NDArray[np.float32]) -> NDArray[np.float64]:
        """Latents float64 [items, latent_dim]; BadInput for a wrong width or what is not finite (item_ids name the row)."""
        self.refuse_width(embeddings)
        refuse_not_finite(item_ids, embeddings)
        latents = np.empty((len(embeddings), self.model.latent_dim))
        device = self.model.quantiser.centres.device
        for at in _batches(len(embeddings)):
            rows = torch.from_numpy(unit_vectors(embeddings[at])).to(device, torch.float64)
            with torch.no_grad():
                latents[at] = self.model.encoder(rows).cpu().numpy()
        return latents

    def nearest_codes(self, item_ids: Ints, embeddings: NDArray[np.float32]) -> NDArray[np.int32]:
        """What the quantiser alone says, int32 [items, levels]: equal for equal embeddings, not unique."""
        codes = np.empty((len(embeddings), self.num_levels), dtype=np.int32)
        for at in _batches(len(embeddings)):
            latents = torch.from_numpy(self.latents(item_ids[at], embeddings[at])).to(self.model.quantiser.centres.device)
            codes[at] = self.model.quantiser(latents).codes.cpu().numpy()
        return codes

    def decode(self, codes: NDArray[np.int32]) -> NDArray[np.float32]:
        """Reconstructed embeddings float32 [items, dim]."""
        decoded = np.empty((len(codes), self.model.dim), dtype=np.float32)
        for at in _batches(len(codes)):
            part = torch.from_numpy(codes[at].astype(np.int64)).to(self.model.quantiser.centres.device)
            with torch.no_grad():
                decoded[at] = self.model.decoder(self.model.quantiser.vectors_of(part)).float().cpu().numpy()
        return decoded

    def with_items(self, item_ids: Ints, embeddings: NDArray[np.float32]) -> Tokenizer:
        """The same with ids for these items too; those it knows keep theirs, and their embeddings are not looked at."""
        unique, first = np.unique(item_ids, return_index=True)
        is_new = ~np.isin(unique, self.item_ids)
        if not is_new.any():
            return self
        new, rows = unique[is_new], embeddings[first[is_new]]
        capacity = self.num_codes**self.num_levels
        if len(self.item_ids) + len(new) > capacity:
            raise ConfigError(
                f"tokenizer {self.hash} has given out {len(self.item_ids):,} of its {capacity:,} ids, so {len(new):,} new items can't get one; "
                "make ids anew with larger semantic_ids.num_codes or num_levels (semantic_ids.tokenizer empty)."
            )
        assigned = unique_codes(self.latents(new, rows), new, self.model.quantiser, taken=self.codes)
        return dataclasses.replace(self, item_ids=np.concatenate([self.item_ids, new]), codes=np.concatenate([self.codes, assigned.codes]))

    def codes_of(self, item_ids: Ints) -> NDArray[np.int32]:
        """Codes int32 [items, levels] of items that have ids; BadInput naming those that have none."""
        order = np.argsort(self.item_ids, kind="stable")
        place = np.searchsorted(self.item_ids, item_ids, sorter=order).clip(max=max(len(order) - 1, 0))
        found = self.item_ids[order[place]] == item_ids if len(order) else np.zeros(len(item_ids), dtype=bool)
        if not found.all():
            missing = item_ids[~found]
            raise BadInput(
                f"{len(missing):,} item(s) ({', '.join(str(item) for item in missing[:5])}) have no semantic id in tokenizer {self.hash}; "
                "add them with their embeddings first (with_items)."
            )
        return self.codes[order[place]]

    def save(self, uri: str) -> None:
        """Write it below `uri`; the description comes last, so that a folder without one is not a tokenizer."""
        items = {"item_ids": torch.from_numpy(self.item_ids.copy()), "codes": torch.from_numpy(self.codes.copy())}
        storage.write_bytes(storage.join(uri, WEIGHTS), safetensors.torch.save(_weights(self.model)))
        storage.write_bytes(storage.join(uri, ITEMS), safetensors.torch.save(items))
        description = self._sizes() | {
            "hash": self.hash, "num_founding": self.num_founding, "num_items": len(self.item_ids), "ids_hash": self.ids_hash,
        }  # fmt: skip
        storage.write_json(storage.join(uri, DESCRIPTION), description)

    @classmethod
    def load(cls, uri: str, expected_hash: str = "") -> Tokenizer:
        """Read it; BadInput when its contents don't match its own hash or the one that is expected."""
        if not storage.exists(storage.join(uri, DESCRIPTION)):
            raise BadInput(f"{uri} holds no {DESCRIPTION}, so it is not a tokenizer; give the output `tokenizer` of the step semantic_ids.")
        raw: dict[str, Any] = storage.read_json(storage.join(uri, DESCRIPTION))
        if raw.get("format") != FORMAT:
            raise BadInput(f"{uri}: tokenizer format {raw.get('format')}, this version reads {FORMAT}; run the step semantic_ids again.")
        model = RqVae(raw["dim"], raw["latent_dim"], tuple(raw["hidden_dims"]), raw["num_levels"], raw["num_codes"])
        try:
            model.load_state_dict(safetensors.torch.load(storage.read_bytes(storage.join(uri, WEIGHTS))))
            items = safetensors.torch.load(storage.read_bytes(storage.join(uri, ITEMS)))
        except (FileNotFoundError, RuntimeError, safetensors.SafetensorError) as error:
            raise BadInput(f"{uri}: the tokenizer is damaged ({error}); copy it again or run the step semantic_ids again.") from error
        tokenizer = cls(
            model=_in_float64(model), item_ids=items["item_ids"].numpy(), codes=items["codes"].numpy(), num_founding=raw["num_founding"]
        )
        if raw.get("ids_hash", tokenizer.ids_hash) != tokenizer.ids_hash:
            raise BadInput(f"{uri}: the ids aren't those that its description was written for; copy it again or use another tokenizer.")
        for wanted, why in ((raw["hash"], "its own description says"), (expected_hash, "what was made with it says")):
            if wanted and tokenizer.hash != wanted:
                raise BadInput(
                    f"{uri}: tokenizer {tokenizer.hash}, but {why} {wanted}; codes would mean something else. Use the right one."
                )
        return tokenizer

    def _sizes(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "dim": self.model.dim,
            "latent_dim": self.model.latent_dim,
            "hidden_dims": list(self.model.hidden_dims),
            "num_levels": self.num_levels,
            "num_codes": self.num_codes,
        }


def _batches(num_items: int) -> Iterator[slice]:
    for start in range(0, num_items, BATCH):
        yield slice(start, start + BATCH)


def _in_float64(model: RqVae) -> RqVae:
    """A copy whose float32 weights are held in float64."""
    copied = RqVae(model.dim, model.latent_dim, model.hidden_dims, model.quantiser.num_levels, model.quantiser.num_codes)
    copied.load_state_dict(model.state_dict())
    return copied.to(model.quantiser.centres.device).double().eval()


def _weights(model: RqVae) -> dict[str, torch.Tensor]:
    """The weights in float32, exactly: they were trained in it."""
    return {name: tensor.detach().to("cpu", torch.float32).contiguous() for name, tensor in model.state_dict().items()}
