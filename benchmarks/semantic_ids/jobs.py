"""What runs in processes of its own; benchmarks/job.py says what a job is. Codes and vectors pass between jobs as files."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.semantic_ids.peers import Fitted

CODES, UNIQUE, DECODED = "codes.npy", "unique.npy", "decoded.npy"


def generate(folder: str, num_items: int) -> dict[str, Any]:
    """The synthetic vectors."""
    from benchmarks.semantic_ids.worlds import synthetic

    synthetic(num_items).save(Path(folder))
    return {}


def clrflow(world: str, folder: str, levels: int, codes: int, seed: int, **settings: Any) -> dict[str, Any]:
    """Ours: train, encode, make unique; as the step does, without its report."""
    import numpy as np

    from benchmarks.semantic_ids.worlds import World
    from clrflow.semantic_ids.build import build
    from clrflow.semantic_ids.settings import SemanticIdSettings

    catalogue = _catalogue(World.load(world))
    chosen = SemanticIdSettings(num_levels=levels, num_codes=codes, seed=seed, **settings)
    started = time.monotonic()
    built = build(catalogue, chosen)
    seconds = time.monotonic() - started
    assert built.trained is not None
    again = time.monotonic()
    nearest = built.tokenizer.nearest_codes(catalogue.item_ids, catalogue.embeddings)
    encode_s = time.monotonic() - again
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    np.save(place / CODES, nearest)
    np.save(place / UNIQUE, built.assigned.codes)
    np.save(place / DECODED, built.tokenizer.decode(nearest))
    return {
        "seconds": seconds, "train_s": built.train_s, "encode_s": encode_s, "assign_s": seconds - built.train_s, "hash": built.tokenizer.hash,
        "epochs": len(built.trained.epochs), "best_epoch": built.trained.best_epoch, "moved": sum(built.assigned.moved),
    }  # fmt: skip


def faiss(world: str, folder: str, levels: int, codes: int, seed: int) -> dict[str, Any]:
    """Residual k-means."""
    from benchmarks.semantic_ids.peers.by_faiss import fit

    return _peer(fit, world, folder, levels, codes, seed)


def residual_vq(world: str, folder: str, levels: int, codes: int, seed: int, **options: Any) -> dict[str, Any]:
    """ResidualVQ."""
    from benchmarks.semantic_ids.peers.by_vq import fit

    return _peer(functools.partial(fit, **options), world, folder, levels, codes, seed)


def rq_kmeans(world: str, folder: str, levels: int, codes: int, seed: int) -> dict[str, Any]:
    """RQKMeans of semantic-id."""
    from benchmarks.semantic_ids.peers.by_semantic_id import fit_kmeans

    return _peer(fit_kmeans, world, folder, levels, codes, seed)


def rq_vae(world: str, folder: str, levels: int, codes: int, seed: int, **options: Any) -> dict[str, Any]:
    """RQVAE of semantic-id."""
    from benchmarks.semantic_ids.peers.by_semantic_id import fit_rqvae

    return _peer(functools.partial(fit_rqvae, **options), world, folder, levels, codes, seed)


def _peer(fit: Callable[..., Fitted], world: str, folder: str, levels: int, codes: int, seed: int) -> dict[str, Any]:
    import numpy as np

    from benchmarks.semantic_ids.worlds import World

    embeddings = World.load(world).embeddings
    started = time.monotonic()
    fitted = fit(embeddings, levels, codes, seed)
    train_s = time.monotonic() - started
    found = fitted.encode(embeddings)
    seconds = time.monotonic() - started
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    np.save(place / CODES, found.astype(np.int32))
    np.save(place / DECODED, fitted.decode(found.astype(np.int64)))
    return {"seconds": seconds, "train_s": train_s, "encode_s": seconds - train_s}


def judge(world: str, folder: str, codes: int) -> dict[str, Any]:
    """The figures of codes that a tokenizer gave, by the same code for all."""
    import numpy as np

    from benchmarks.semantic_ids.worlds import World
    from clrflow.semantic_ids import quality

    given, found, decoded = World.load(world), np.load(Path(folder) / CODES), np.load(Path(folder) / DECODED)
    levels = quality.levels_of(found, (codes,) * found.shape[1], codes)
    unique = np.load(Path(folder) / UNIQUE) if (Path(folder) / UNIQUE).exists() else None
    agreement = quality.neighbour_agreement(found, given.num_groups, given.groups, seed=0)
    return {
        "used": [level.used for level in levels],
        "evenness": [level.evenness for level in levels],
        "collision": quality.collision(found),
        "floor": quality.collision(given.embeddings),
        "collision_after": None if unique is None else quality.collision(unique),
        "cosine": quality.mean_cosine(given.embeddings, decoded),
        "agreement": list(agreement.by_prefix),
        "agreement_random": agreement.random,
    }


def stability(world: str, folder: str, levels: int, codes: int) -> dict[str, Any]:
    """Whether ids are equal: by one and two processes, after saving and loading, in batches of one and of all, after 1,000 items more."""
    import numpy as np

    from benchmarks.semantic_ids.worlds import World
    from clrflow.semantic_ids.build import build
    from clrflow.semantic_ids.settings import SemanticIdSettings
    from clrflow.semantic_ids.tokenizer import Tokenizer

    catalogue = _catalogue(World.load(world))
    one, two = (
        build(catalogue, SemanticIdSettings(num_levels=levels, num_codes=codes, num_processes=processes)).tokenizer for processes in (1, 2)
    )
    one.save(folder)
    loaded = Tokenizer.load(folder)
    ids, vectors = catalogue.item_ids, catalogue.embeddings
    known = one.nearest_codes(ids, vectors)
    singly = np.concatenate([loaded.nearest_codes(ids[at : at + 1], vectors[at : at + 1]) for at in range(1000)])
    grown = loaded.with_items(np.arange(1000) + ids.max() + 1, vectors[:1000])
    return {
        "one and two processes": bool(np.array_equal(one.codes, two.codes) and one.hash == two.hash),
        "saved, loaded, encoded again": bool(np.array_equal(loaded.nearest_codes(ids, vectors), known)),
        "saved, loaded, looked up": bool(np.array_equal(loaded.codes_of(ids), one.codes)),
        "one by one and all together": bool(np.array_equal(singly, known[:1000])),
        "after 1,000 copies were added": bool(np.array_equal(grown.codes_of(ids), one.codes)),
        "unique after 1,000 copies were added": bool(len(np.unique(grown.codes, axis=0)) == len(ids) + 1000),
    }


def drift(world: str, levels: int, codes: int, share: float) -> dict[str, Any]:
    """Share of items that keep their first codes when a tenth more items come: ids added to, trained on, made anew."""
    import numpy as np

    from benchmarks.semantic_ids.worlds import World
    from clrflow.semantic_ids.build import add, build
    from clrflow.semantic_ids.catalogue import Catalogue
    from clrflow.semantic_ids.settings import SemanticIdSettings

    whole = _catalogue(World.load(world))
    rows = np.sort(np.random.default_rng(0).permutation(len(whole))[: int(share * len(whole))])
    zeros = np.zeros(len(rows), dtype=np.int64)
    before = build(
        Catalogue(item_ids=whole.item_ids[rows], embeddings=whole.embeddings[rows], num_interests=zeros, interests=zeros[:0], titles=[]),
        settings := SemanticIdSettings(num_levels=levels, num_codes=codes),
    ).tokenizer
    anew = build(whole, settings).tokenizer
    same = np.cumprod(anew.codes_of(before.item_ids) == before.codes, axis=1).mean(0)
    added, trained_on = add(whole, before).change, build(whole, settings, before).change
    assert added is not None
    assert trained_on is not None
    return {"added to": added.kept, "trained on": trained_on.kept, "made anew": same.tolist()}


def encode(who: str, dim: int, num_items: int, levels: int, codes: int) -> dict[str, Any]:
    """Seconds for the codes of random vectors under random codebooks: `ours` in float64, `ours float32`, `faiss` or `residual_vq`."""
    import numpy as np
    import torch

    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(num_items, dim)).astype(np.float32)
    books = rng.normal(size=(levels, codes, dim)).astype(np.float32) * 0.8 ** np.arange(levels, dtype=np.float32)[:, None, None]
    if who.startswith("ours"):
        from clrflow.semantic_ids.quantiser import ResidualQuantiser

        quantiser = ResidualQuantiser(levels, codes, dim)
        quantiser.centres.copy_(torch.from_numpy(books))
        kind = torch.float32 if who.endswith("float32") else torch.float64
        quantiser = quantiser.to(kind)

        def run(part: Any) -> Any:
            return quantiser(torch.from_numpy(part).to(kind)).codes
    elif who == "faiss":
        from benchmarks.semantic_ids.peers.by_faiss import encoder

        run = encoder(list(books))
    else:
        from vector_quantize_pytorch import ResidualVQ  # type: ignore[import-not-found, import-untyped, unused-ignore]

        peer = ResidualVQ(dim=dim, num_quantizers=levels, codebook_size=codes).eval()
        for layer, book in zip(peer.layers, books, strict=True):
            layer._codebook.embed.copy_(torch.from_numpy(book)[None])

        def run(part: Any) -> Any:
            with torch.no_grad():
                return peer(torch.from_numpy(part)[None])[1]

    def once() -> float:
        started = time.monotonic()
        for at in range(0, num_items, 8192):
            run(vectors[at : at + 8192])
        return time.monotonic() - started

    return {"seconds": min(once() for _ in range(3))}


def _catalogue(world: Any) -> Any:
    """All items, as the step reads them."""
    import numpy as np

    from clrflow.semantic_ids.catalogue import Catalogue

    return Catalogue(
        item_ids=np.arange(len(world.embeddings), dtype=np.int64), embeddings=world.embeddings, num_interests=world.num_groups,
        interests=world.groups, titles=[],
    )  # fmt: skip


JOBS: dict[str, Callable[..., dict[str, Any]]] = {
    job.__name__: job for job in (generate, clrflow, faiss, residual_vq, rq_kmeans, rq_vae, judge, stability, drift, encode)
}
