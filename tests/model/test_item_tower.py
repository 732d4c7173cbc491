"""Cold items: what has no id row is carried by semantic ids, interests and content."""

from __future__ import annotations

import torch

from clrflow.model.item_tower import ItemTower
from clrflow.model.settings import ModelSettings


def rows(num_items: int, seed: int = 0) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return {
        "id_rows": torch.randn(num_items, 8),
        "in_vocabulary": torch.ones(num_items, dtype=torch.bool),
        "semantic_rows": torch.randn(num_items, 2, 8),
        "interests": torch.randn(num_items, 8),
        "content": torch.randn(num_items, 5),
    }


def tower(**settings: float) -> ItemTower:
    torch.manual_seed(1)
    return ItemTower(ModelSettings(dim=8, num_heads=2, **settings), num_levels=2, content_dim=5)  # type: ignore[arg-type]


def test_vectors_have_unit_length() -> None:
    _, vectors = tower().eval()(**rows(3))
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(3))


def test_the_id_row_of_an_item_outside_the_vocabulary_is_not_read() -> None:
    inputs = rows(2)
    inputs["in_vocabulary"] = torch.tensor([True, False])
    model = tower().eval()
    _, before = model(**inputs)
    inputs["id_rows"] = inputs["id_rows"] + 1
    _, after = model(**inputs)
    assert not torch.allclose(before[0], after[0])
    torch.testing.assert_close(before[1], after[1])


def test_id_dropout_hides_ids_in_training_only() -> None:
    model = tower(id_dropout=0.999, dropout=0.0)
    inputs = rows(50)
    other = {**inputs, "id_rows": inputs["id_rows"] + 1}
    model.train()
    _, hidden = model(**inputs)
    _, hidden_too = model(**other)
    assert torch.isclose(hidden, hidden_too).all(dim=1).sum() >= 48
    model.eval()
    assert not torch.isclose(model(**inputs)[1], model(**other)[1]).all(dim=1).any()


def test_content_and_interests_can_be_left_out() -> None:
    inputs = rows(2)
    model = tower(use_content=False, use_interests=False).eval()
    _, before = model(**inputs)
    _, after = model(**{**inputs, "content": inputs["content"] + 1, "interests": inputs["interests"] + 1})
    torch.testing.assert_close(before, after)
